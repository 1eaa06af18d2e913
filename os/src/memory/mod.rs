//! Memory that devices, the kernel or peers access concurrently with threads of this program.
//!
//! No other module of the workspace maps pages, or reads bytes that may change at any time.

#[cfg(test)]
mod areas;
mod fork_exclusion;
mod huge_pages;
mod mapping;
mod numa;
mod shared_bytes;

pub use self::{mapping::Mapping, shared_bytes::SharedBytes};
