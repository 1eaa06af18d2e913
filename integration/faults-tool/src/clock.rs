use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds of this host's clock, which all of its processes share and nobody sets.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}
