//! In which order, and by which stores, a huge page is copied.

/// Order and kind of stores of a copy or clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// From begin to end.
    Ascending,
    /// The order of reference 004, one sub-page at a time: [`TargetLast`](crate::TargetLast).
    TargetLast,
    /// Mainline's three contiguous ranges: [`ranges()`](crate::ranges()).
    Ranges,
    /// Large blocks from the far ends towards the target, the target's
    /// neighbourhood last: [`Chunks`](crate::Chunks). Everything stays in some cache.
    Chunks,
    /// Past the caches except for what lies around the target, which comes
    /// last.
    Streaming,
    /// [`Chunks`](Self::Chunks) for a page within half of the thread's share of
    /// the last-level cache; of a larger page, that much from the target on,
    /// and the rest past the caches.
    #[default]
    Auto,
}

impl Strategy {
    /// Every strategy, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Ascending,
        Self::TargetLast,
        Self::Ranges,
        Self::Chunks,
        Self::Streaming,
        Self::Auto,
    ];

    /// The name that the command line and the tables use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ascending => "ascending",
            Self::TargetLast => "target-last",
            Self::Ranges => "ranges",
            Self::Chunks => "chunks",
            Self::Streaming => "streaming",
            Self::Auto => "auto",
        }
    }

    /// The strategy of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.name() == name)
    }
}
