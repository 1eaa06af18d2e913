//! librdmacm and libibverbs as the program is linked with them, with bindings that are generated
//! from their headers when it is built.
#![allow(unsafe_code)]

pub(crate) use rdma_sys::*;

unsafe extern "C" {
    /// `_ibv_query_gid_ex` of `infiniband/verbs.h`, which `ibv_query_gid_ex` calls inline.
    ///
    /// Available in rdma-core 32 and later.
    pub(crate) fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port_num: u32,
        gid_index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        entry_size: usize,
    ) -> libc::c_int;

    /// `_ibv_query_gid_table` of `infiniband/verbs.h`, which `ibv_query_gid_table` calls inline.
    ///
    /// Available in rdma-core 32 and later.
    pub(crate) fn _ibv_query_gid_table(
        context: *mut ibv_context,
        entries: *mut ibv_gid_entry,
        max_entries: usize,
        flags: u32,
        entry_size: usize,
    ) -> libc::ssize_t;
}

/// There is nothing to open: the program would not have started without the libraries.
#[cfg(feature = "linked")]
pub(crate) fn open_libraries() -> Result<(), rdma_status::OsError> {
    Ok(())
}
