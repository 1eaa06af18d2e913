//! librdmacm and libibverbs, linked with the program. The bindings are generated from the C headers
//! when this crate is built.
#![allow(unsafe_code)]

pub(crate) use rdma_sys::*;

unsafe extern "C" {
    /// The function that the inline function `ibv_query_gid_ex` of `infiniband/verbs.h` calls.
    ///
    /// It exists in rdma-core 32 and later.
    pub(crate) fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> libc::c_int;

    /// The function that the inline function `ibv_query_gid_table` of `infiniband/verbs.h` calls.
    ///
    /// It exists in rdma-core 32 and later.
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> libc::ssize_t;
}

/// Does nothing, because the program is linked with the libraries and would not have started
/// without them.
#[cfg(feature = "linked")]
pub(crate) fn open_libraries() -> Result<(), rdma_status::OsError> {
    Ok(())
}
