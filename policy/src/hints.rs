//! What the user and the program say of how memory is used.

/// How much of a folio that left comes back at a fault: the references' `swapin_enabled`, and what
/// learns.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u32)]
pub enum SwapIn {
    /// By what the program does and says.
    #[default]
    Auto = 0,
    /// All of it.
    Always = 1,
    /// All of it where the program said MADV_HUGEPAGE, else base pages.
    Madvise = 2,
    /// Base pages.
    Never = 3,
}

impl SwapIn {
    /// What has this number; `Auto` where nothing has.
    pub fn of_word(word: u32) -> SwapIn {
        match word {
            1 => SwapIn::Always,
            2 => SwapIn::Madvise,
            3 => SwapIn::Never,
            _ => SwapIn::Auto,
        }
    }
}

/// What the program said of how it will use a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    pub pattern: Pattern,
    pub huge: Huge,
}

/// MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Pattern {
    #[default]
    Normal = 0,
    Sequential = 1,
    Random = 2,
}

/// MADV_HUGEPAGE, MADV_NOHUGEPAGE.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Huge {
    #[default]
    Unsaid = 0,
    Wanted = 1,
    Unwanted = 2,
}
