use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the limit of open files to the hard limit, and returns it.
pub(crate) fn raise_open_files() -> u64 {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return u64::MAX;
    };
    match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(error) => {
            log::warn!("cannot raise the limit of open files above {soft}: {error}");
            soft
        }
    }
}
