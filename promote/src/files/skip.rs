//! Why a file is skipped.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// Below none of the given paths.
    NotSelected,
    /// Nobody has it open any more, and no handle leads to it.
    NotFound,
    /// We may not open it.
    NotPermitted,
    /// A directory, a device, a symbolic link: not promoted.
    NotRegular,
    /// On a network or in user space: to open it might wait for ever.
    Remote,
    /// Somebody has a lease on it.
    Leased,
}

impl Skip {
    pub fn name(self) -> &'static str {
        match self {
            Skip::NotSelected => "not_selected",
            Skip::NotFound => "not_found",
            Skip::NotPermitted => "not_permitted",
            Skip::NotRegular => "not_regular",
            Skip::Remote => "remote",
            Skip::Leased => "leased",
        }
    }
}
