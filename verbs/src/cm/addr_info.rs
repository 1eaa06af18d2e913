#![allow(unsafe_code)]

use std::{
    ffi::CString,
    fmt,
    mem::MaybeUninit,
    net::SocketAddr,
    ptr::{self, NonNull},
};

use rdma_status::OsError;

use super::PortSpace;
use crate::{
    sys::{cvt, ffi, sockaddr},
    verbs::QpType,
};

/// Hints that restrict the result of [`AddrInfo::new`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddrInfoHints {
    /// Whether the address is for a listener: `RAI_PASSIVE`. Default: `false`.
    pub passive: bool,
    /// Whether the node is a numeric address and not a name: `RAI_NUMERICHOST`. Default: `false`.
    pub numeric_host: bool,
    /// The port space. Default: TCP.
    pub port_space: Option<PortSpace>,
    /// The local address to connect from. Default: the source address of the route to the peer.
    pub src: Option<SocketAddr>,
}

/// The addresses that librdmacm has resolved for a node and a service.
///
/// See [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
#[doc(alias = "rdma_addrinfo")]
pub struct AddrInfo {
    list: NonNull<ffi::rdma_addrinfo>,
}

// SAFETY: `list` is only read until it is freed, and any thread may read and free it.
unsafe impl Send for AddrInfo {}
// SAFETY: all methods of a shared `AddrInfo` only read `list`.
unsafe impl Sync for AddrInfo {}

impl AddrInfo {
    /// Resolves a node (a name or an address) and a service (a port number).
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if `node` or `service` contains a null byte, or if the service is unknown.
    /// Returns `EADDRNOTAVAIL` if the node is unknown, and `EAGAIN` if the failure is temporary.
    /// For other failures, returns the errors of
    /// [`rdma_getaddrinfo(3)`](https://man7.org/linux/man-pages/man3/rdma_getaddrinfo.3.html).
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn new(node: Option<&str>, service: &str, hints: AddrInfoHints) -> Result<Self, OsError> {
        const CALL: &str = "rdma_getaddrinfo";
        ffi::open_libraries()?;
        let c_string =
            |text: &str| CString::new(text).map_err(|_| OsError::new(CALL, libc::EINVAL));
        let node = node.map(c_string).transpose()?;
        let service = c_string(service)?;
        let mut raw = MaybeUninit::<ffi::rdma_addrinfo>::zeroed();
        // SAFETY: `rdma_addrinfo` consists of integers and pointers, for which all zeros is a valid
        // value.
        let raw = unsafe { raw.assume_init_mut() };
        // The cast is lossless, because both flags are small constants.
        let flag = |wanted, flag: u32| if wanted { flag.cast_signed() } else { 0 };
        raw.ai_flags =
            flag(hints.passive, ffi::RAI_PASSIVE) | flag(hints.numeric_host, ffi::RAI_NUMERICHOST);
        raw.ai_port_space = hints.port_space.map_or(0, PortSpace::raw).cast_signed();
        raw.ai_qp_type = QpType::RC.raw().cast_signed();
        if hints.port_space == Some(PortSpace::UDP) {
            raw.ai_qp_type = QpType::UD.raw().cast_signed();
        }
        let mut list = ptr::null_mut();
        let node = node.as_ref().map_or(ptr::null(), |node| node.as_ptr());
        let mut src = hints.src.map(sockaddr::from_std);
        if let Some(src) = &mut src {
            raw.ai_src_len = size_of_val(src) as libc::socklen_t;
            raw.ai_src_addr = ptr::from_mut(src).cast();
        }
        // SAFETY: `service` is a null-terminated string, and `node` is null or such a string.
        // `raw`, the addresses to which it points, and `list` are local variables.
        let ret = cvt(CALL, || unsafe {
            match ffi::rdma_getaddrinfo(node, service.as_ptr(), raw, &raw mut list) {
                // The error is in `errno`.
                libc::EAI_SYSTEM => -1,
                ret => ret,
            }
        })?;
        if let Some(errno) = resolver_errno(ret) {
            return Err(OsError::new(CALL, errno));
        }
        let list = NonNull::new(list).ok_or(OsError::new(CALL, libc::EIO))?;
        Ok(Self { list })
    }

    /// Returns the local address to bind to, if librdmacm has determined one.
    #[must_use]
    pub fn src_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm sets `ai_src_addr` and `ai_src_len` together; `from_ptr` accepts null.
        unsafe { sockaddr::from_ptr(info.ai_src_addr.cast(), info.ai_src_len as usize) }
    }

    /// Returns the peer's address to connect to, if librdmacm has determined one.
    #[must_use]
    pub fn dst_addr(&self) -> Option<SocketAddr> {
        let info = self.first();
        // SAFETY: librdmacm sets `ai_dst_addr` and `ai_dst_len` together; `from_ptr` accepts null.
        unsafe { sockaddr::from_ptr(info.ai_dst_addr.cast(), info.ai_dst_len as usize) }
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::rdma_addrinfo {
        self.list.as_ptr()
    }

    fn first(&self) -> &ffi::rdma_addrinfo {
        // SAFETY: `list` points to the first element of the list, which exists until `drop` frees
        // it.
        unsafe { self.list.as_ref() }
    }
}

/// Converts an error code of the system resolver to an `errno`. librdmacm returns such codes
/// unchanged. Returns `None` if `ret` is 0 (success).
///
/// The code `EAI_BADFLAGS` is −1, but cannot occur, because `new` passes only valid flags.
fn resolver_errno(ret: libc::c_int) -> Option<libc::c_int> {
    match ret {
        0 => None,
        libc::EAI_AGAIN => Some(libc::EAGAIN),
        libc::EAI_FAMILY => Some(libc::EAFNOSUPPORT),
        libc::EAI_MEMORY => Some(libc::ENOMEM),
        libc::EAI_SERVICE => Some(libc::EINVAL),
        _ => Some(libc::EADDRNOTAVAIL),
    }
}

impl fmt::Debug for AddrInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddrInfo")
            .field("src", &self.src_addr())
            .field("dst", &self.dst_addr())
            .finish()
    }
}

impl Drop for AddrInfo {
    fn drop(&mut self) {
        // SAFETY: `rdma_getaddrinfo` allocated the list, and only this `drop` frees it.
        unsafe { ffi::rdma_freeaddrinfo(self.as_ptr()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolver_error_codes_become_errnos() {
        assert_eq!(resolver_errno(0), None);
        assert_eq!(resolver_errno(libc::EAI_NONAME), Some(libc::EADDRNOTAVAIL));
        assert_eq!(resolver_errno(libc::EAI_AGAIN), Some(libc::EAGAIN));
    }

    #[test]
    fn a_zero_byte_is_refused() {
        let error = AddrInfo::new(Some("a\0b"), "1", AddrInfoHints::default()).unwrap_err();
        assert_eq!(error, OsError::new("rdma_getaddrinfo", libc::EINVAL));
    }
}
