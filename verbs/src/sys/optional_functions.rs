//! libibverbs functions that are newer than the oldest supported version, rdma-core 32.
//!
//! They are looked up at their first use, even if the program is linked with libibverbs. A program
//! that is linked with such a function would not start with an older library.
#![allow(unsafe_code)]

use libc::c_int;
use libloading::Library;
use rdma_status::OsError;

use super::{
    PerProcess, ffi,
    library::{function, library},
};

/// The type of `ibv_reg_dmabuf_mr(3)`, available since rdma-core 34. The function returns a new
/// region, or null if it fails.
pub(crate) type RegDmabufMr = unsafe extern "C" fn(
    pd: *mut ffi::ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ffi::ibv_mr;

struct OptionalFunctions {
    reg_dmabuf_mr: Result<RegDmabufMr, OsError>,
    /// The library that contains the functions. It must stay open while the function pointers are
    /// used.
    _library: Library,
}

impl OptionalFunctions {
    fn open(file: &'static str) -> Result<Self, OsError> {
        let library = library(file)?;
        Ok(Self {
            // SAFETY: the declared type is the type in the header, which the test below checks.
            reg_dmabuf_mr: unsafe { function(&library, "ibv_reg_dmabuf_mr") },
            _library: library,
        })
    }
}

/// Returns the function `ibv_reg_dmabuf_mr`.
///
/// # Errors
///
/// Returns `ELIBBAD` with the name of the function if the library is older than rdma-core 34.
pub(crate) fn ibv_reg_dmabuf_mr() -> Result<RegDmabufMr, OsError> {
    static FUNCTIONS: PerProcess<Result<OptionalFunctions, OsError>> =
        PerProcess::new(|| OptionalFunctions::open("libibverbs.so.1"));

    match FUNCTIONS.get() {
        Ok(functions) => functions.reg_dmabuf_mr,
        Err(error) => Err(*error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_function_is_named_in_the_error() {
        let old = OptionalFunctions::open("libc.so.6").unwrap();
        assert_eq!(
            old.reg_dmabuf_mr.err(),
            Some(OsError::new("ibv_reg_dmabuf_mr", libc::ELIBBAD))
        );
    }

    #[cfg(feature = "linked")]
    #[test]
    fn newer_functions_match_the_header() {
        // This line compiles only if the declared type is the type in the header.
        let theirs: RegDmabufMr = crate::sys::linked::ibv_reg_dmabuf_mr;
        let ours = ibv_reg_dmabuf_mr().unwrap();
        assert_eq!(ours as usize, theirs as usize);
    }
}
