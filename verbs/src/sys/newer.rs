//! Functions that libibverbs has since a later version than the oldest supported one, rdma-core 32.
//!
//! Both builds find them when they are first used. A program that is linked with such a function
//! would not start with an older library.
#![allow(unsafe_code)]

use libc::c_int;
use libloading::Library;
use rdma_status::OsError;

use super::{
    PerProcess, ffi,
    library::{function, library},
};

/// The type of `ibv_reg_dmabuf_mr(3)`, which rdma-core 34 introduced: null with `errno` set, or a
/// new region.
pub(crate) type RegDmabufMr = unsafe extern "C" fn(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr;

struct Newer {
    reg_dmabuf_mr: Result<RegDmabufMr, OsError>,
    /// The library of the functions.
    _library: Library,
}

impl Newer {
    fn open(file: &'static str) -> Result<Self, OsError> {
        let library = library(file)?;
        Ok(Self {
            // SAFETY: the type is that of the headers: the test below compares.
            reg_dmabuf_mr: unsafe { function(&library, "ibv_reg_dmabuf_mr") },
            _library: library,
        })
    }
}

/// Returns the function `ibv_reg_dmabuf_mr`.
///
/// # Errors
///
/// `ELIBBAD` with the name of the function, if the library is older than rdma-core 34.
pub(crate) fn ibv_reg_dmabuf_mr() -> Result<RegDmabufMr, OsError> {
    static NEWER: PerProcess<Result<Newer, OsError>> =
        PerProcess::new(|| Newer::open("libibverbs.so.1"));

    match NEWER.get() {
        Ok(newer) => newer.reg_dmabuf_mr,
        Err(error) => Err(*error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_function_is_refused_by_name() {
        let old = Newer::open("libc.so.6").unwrap();
        assert_eq!(
            old.reg_dmabuf_mr.err(),
            Some(OsError::new("ibv_reg_dmabuf_mr", libc::ELIBBAD))
        );
    }

    #[cfg(feature = "linked")]
    #[test]
    fn newer_functions_are_the_headers() {
        // Does not compile if a type differs.
        let theirs: RegDmabufMr = crate::sys::linked::ibv_reg_dmabuf_mr;
        let ours = ibv_reg_dmabuf_mr().unwrap();
        assert_eq!(ours as usize, theirs as usize);
    }
}
