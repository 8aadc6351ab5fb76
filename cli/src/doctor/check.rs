//! What was looked at, what was found, and what follows.

use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Ok,
    /// Worth knowing; nothing is lost.
    Note,
    /// `run` works, but not as well as it could.
    Limited,
    /// `run` does not work.
    Missing,
}

impl Verdict {
    pub(super) fn word(self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Note => "note",
            Verdict::Limited => "LIMITED",
            Verdict::Missing => "MISSING",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: &'static str,
    pub verdict: Verdict,
    pub found: String,
    /// What follows from it.
    pub consequence: Option<String>,
    /// The command that mends it.
    pub mend: Option<String>,
}

impl Check {
    pub(super) fn new(name: &'static str, verdict: Verdict, found: impl Into<String>) -> Check {
        Check {
            name,
            verdict,
            found: found.into(),
            consequence: None,
            mend: None,
        }
    }

    pub(super) fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check::new(name, Verdict::Ok, found)
    }

    pub(super) fn so(mut self, consequence: impl Into<String>) -> Check {
        self.consequence = Some(consequence.into());
        self
    }

    pub(super) fn mend(mut self, command: impl Into<String>) -> Check {
        self.mend = Some(command.into());
        self
    }
}
