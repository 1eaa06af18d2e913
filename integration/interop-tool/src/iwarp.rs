//! What some cases take of a device, which iWARP does not have: the C programs fail with each other
//! there.

use crate::case::Case;

/// What the case takes that software iWARP lacks.
pub(crate) fn lacks(case: &Case) -> Option<&'static str> {
    const BY_HAND: &str = "queue pairs that a program connects by ibv_modify_qp(3)";
    const MANY: &str = "more than some fifty queue pairs in a process";
    match (case.program, &*case.what) {
        ("udaddy" | "mckey", _) => Some("datagrams"),
        ("rc_pingpong" | "rc_example", _) => Some(BY_HAND),
        ("devinfo", what) if what.contains("GID") => Some("GIDs that ibv_devinfo(1) prints"),
        ("rping", what) if what.contains("queue pair") => Some(BY_HAND),
        ("ucmatose", what) if what.ends_with("00 connections") => Some(MANY),
        (_, _) => None,
    }
}
