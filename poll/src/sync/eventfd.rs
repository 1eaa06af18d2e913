use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_status::OsError;
use rdmsg_os::failed;

/// An eventfd that is not inherited, and on which nobody blocks.
pub fn eventfd() -> Result<EventFd, OsError> {
    EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
        .map_err(failed("eventfd"))
}
