//! Who lives, and whose swap must be kept: the rules, without any system call.
//!
//! The supervisor tells what happened and asks what follows. An *image* is a program between exec (or
//! fork) and exec, exit or kill; a process has one after the other.
//!
//! | stage | meaning | becomes |
//! |---|---|---|
//! | Promised | a place for a child; its parent has a hold of it, and may be about to clone | Live (the child speaks), Loose (the parent let go, or went silent) |
//! | Live | its engine has a connection | Loose (the connection ended), Dead |
//! | Loose | nobody speaks for it: it is ending, or a child that has not spoken yet, or nothing | Live (a child speaks), Dead, Ended |
//! | Dead | its process is dead, or another image's by now, so it makes no more requests; those that it made may be on their way | Ended (nobody has a hold of its page) |
//! | Ended | its memory is gone, and all of its reads and writes have ended | forgotten (nobody borrows from it, nothing else needs its swap) |
//!
//! What an image had is given to others when it is forgotten, and not before, but for what no request of
//! it can reach, which is given away when it is Dead and lends nothing. That nobody has a hold of its page
//! is known for certain (`object`); that it could not be found out is never taken for it.

use std::collections::{BTreeMap, BTreeSet};

pub type Id = u32;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Stage {
    Promised { by: Id },
    Live,
    Loose,
    Dead,
    Ended,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Image {
    pub stage: Stage,
    /// Whose slots it may read: its ancestors' by fork.
    lenders: BTreeSet<Id>,
}

#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Life {
    images: BTreeMap<Id, Image>,
}

impl Life {
    /// The lowest number that is free.
    fn add(&mut self, stage: Stage, lenders: BTreeSet<Id>) -> Id {
        let taken = self.images.keys().zip(0..);
        let free = taken.take_while(|(&id, n)| id == *n).count() as Id;
        self.images.insert(free, Image { stage, lenders });
        free
    }

    pub fn stage(&self, id: Id) -> Option<Stage> {
        self.images.get(&id).map(|i| i.stage)
    }

    /// A program was started by exec, and speaks.
    pub fn begin(&mut self) -> Id {
        self.add(Stage::Live, BTreeSet::new())
    }

    /// An image asks for a place for a child. From here on the child may read what the image may read.
    pub fn promise(&mut self, by: Id) -> Option<Id> {
        let parent = self.images.get(&by)?;
        if parent.stage != Stage::Live {
            return None;
        }
        let mut lenders = parent.lenders.clone();
        lenders.insert(by);
        Some(self.add(Stage::Promised { by }, lenders))
    }

    /// The parent has no hold of the child's place any more.
    pub fn let_go(&mut self, by: Id, child: Id) {
        if let Some(c) = self.images.get_mut(&child) {
            if c.stage == (Stage::Promised { by }) {
                c.stage = Stage::Loose;
            }
        }
    }

    /// A child speaks by its place. False if it has none.
    pub fn speak(&mut self, child: Id) -> bool {
        match self.images.get_mut(&child) {
            Some(c) if matches!(c.stage, Stage::Promised { .. } | Stage::Loose) => {
                c.stage = Stage::Live;
                true
            }
            _ => false,
        }
    }

    /// Its connection has ended, or its process. What it had a hold of for children it may have no
    /// more; whether the children are there is asked of them.
    pub fn fall_silent(&mut self, id: Id) {
        for (&i, image) in &mut self.images {
            let own = i == id && image.stage == Stage::Live;
            if own || image.stage == (Stage::Promised { by: id }) {
                image.stage = Stage::Loose;
            }
        }
    }

    /// Its process is dead, or speaks for another image: exec ends all threads before that.
    pub fn die(&mut self, id: Id) {
        self.fall_silent(id);
        if let Some(i) = self.images.get_mut(&id) {
            if i.stage == Stage::Loose {
                i.stage = Stage::Dead;
            }
        }
    }

    /// Nobody has a hold of its page: no memory, no read or write in flight.
    pub fn end(&mut self, id: Id) {
        if let Some(i) = self.images.get_mut(&id) {
            if matches!(i.stage, Stage::Loose | Stage::Dead) {
                i.stage = Stage::Ended;
            }
        }
    }

    /// Whether it makes no more requests.
    pub fn is_dead(&self, id: Id) -> bool {
        matches!(self.stage(id), Some(Stage::Dead | Stage::Ended))
    }

    /// Whether what none of its requests can reach can be given to others now.
    pub fn is_idle(&self, id: Id) -> bool {
        self.stage(id) == Some(Stage::Dead) && !self.lends(id)
    }

    /// Images that have not ended and may read slots of this one.
    pub fn borrowers(&self, id: Id) -> impl Iterator<Item = Id> + '_ {
        let reads = move |i: &Image| i.stage != Stage::Ended && i.lenders.contains(&id);
        let all = self.images.iter();
        all.filter(move |(_, i)| reads(i)).map(|(&id, _)| id)
    }

    pub fn lends(&self, id: Id) -> bool {
        self.borrowers(id).next().is_some()
    }

    /// Whether it may read slots of others.
    pub fn borrows(&self, id: Id) -> bool {
        self.images.get(&id).is_some_and(|i| !i.lenders.is_empty())
    }

    /// Whether what the image had can be given to others now.
    pub fn can_be_forgotten(&self, id: Id) -> bool {
        self.stage(id) == Some(Stage::Ended) && !self.lends(id)
    }

    pub fn forget(&mut self, id: Id) {
        self.images.remove(&id);
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_outlives_a_parent_that_dies_right_after_clone() {
        let mut l = Life::default();
        let parent = l.begin();
        let child = l.promise(parent).unwrap();
        l.fall_silent(parent);
        l.end(parent);
        assert!(!l.can_be_forgotten(parent), "the child may read its slots");
        assert!(l.speak(child));
        l.end(child);
        assert_eq!(l.stage(child), Some(Stage::Live));
        l.die(child);
        assert!(l.is_idle(child) && !l.can_be_forgotten(child));
        l.end(child);
        assert!(l.can_be_forgotten(child) && l.can_be_forgotten(parent));
    }

    #[test]
    fn a_child_that_never_was_leaves_nothing() {
        let mut l = Life::default();
        let parent = l.begin();
        let child = l.promise(parent).unwrap();
        l.end(child);
        assert_eq!(l.stage(child), Some(Stage::Promised { by: parent }));
        l.let_go(parent, child);
        l.end(child);
        assert!(l.can_be_forgotten(child) && !l.lends(parent));
        l.forget(child);
        assert!(!l.speak(child));
        assert_eq!(l.promise(parent), Some(child));
    }

    #[test]
    fn grandchildren_borrow_from_all_before_them() {
        let mut l = Life::default();
        let a = l.begin();
        let b = l.promise(a).unwrap();
        l.speak(b);
        let c = l.promise(b).unwrap();
        l.speak(c);
        l.fall_silent(b);
        l.end(b);
        assert!(l.lends(a) && l.lends(b) && !l.lends(c));
        assert!(l.borrows(c) && !l.borrows(a));
        assert_eq!(l.promise(b), None, "it is dead");
    }
}
