//! Interposition
