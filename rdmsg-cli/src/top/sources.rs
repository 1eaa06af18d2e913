use std::{
    collections::BTreeSet,
    fs,
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::socket::{self, AddressFamily, SockFlag, SockType, UnixAddr, getsockopt, sockopt},
    unistd::geteuid,
};
use rdmsg::observe::Export;

/// The time limit for the reply of one process.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// The maximum length of a reply in bytes. The statistics of a process are much shorter.
const LONGEST: usize = 16 << 20;

/// Returns the directories that contain sockets: the directory of this user and, if this user is
/// root, the directories of all users.
pub(super) fn folders() -> BTreeSet<PathBuf> {
    let mut folders = BTreeSet::from([Export::folder()]);
    if geteuid().is_root() {
        let in_folder = |folder: &str| {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect::<Vec<_>>()
        };
        folders.extend(
            in_folder("/run/user")
                .into_iter()
                .map(|user| user.join("rdmsg")),
        );
        let of_rdmsg = |path: &PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("rdmsg-"))
        };
        folders.extend(in_folder("/tmp").into_iter().filter(of_rdmsg));
    }
    folders
}

/// Returns the sockets in a directory, with their process ids. The file name of a socket is the
/// process id followed by `.sock`.
pub(super) fn sockets(folder: &Path) -> Vec<(u32, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let sockets = entries.filter_map(|entry| {
        let path = entry.path();
        let name = path.file_name()?.to_str()?.strip_suffix(".sock")?;
        Some((name.parse().ok()?, path))
    });
    sockets.collect()
}

/// Connects to a socket without blocking. A blocking connect would wait if the socket's backlog is
/// full and the other process does not accept connections.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    match socket::connect(fd.as_raw_fd(), &UnixAddr::new(path)?) {
        Err(Errno::EAGAIN) => return Err(io::Error::other("the queue of the socket is full")),
        connected => connected?,
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Checks that the process `pid` listens on the socket. If this user is not root, also checks that
/// the process belongs to root or to this user. The file name does not prove the process id,
/// because any user can create a directory `/tmp/rdmsg-…`.
fn check_owner(stream: &UnixStream, pid: u32) -> io::Result<()> {
    let owner = getsockopt(stream, sockopt::PeerCredentials)?;
    if u32::try_from(owner.pid()) != Ok(pid) {
        let other = format!(
            "process {} listens on the socket, not process {pid}",
            owner.pid()
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, other));
    }
    let user = geteuid();
    if !user.is_root() && ![0, user.as_raw()].contains(&owner.uid()) {
        let other = format!("process {pid} belongs to the user {}", owner.uid());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, other));
    }
    Ok(())
}

/// Reads the statistics of the process that listens on a socket. Returns the id of the process, and
/// the statistics in the Prometheus format. The id is 0 for a process in another PID namespace.
///
/// Fails if `pid` is given and [`check_owner`] rejects the process.
pub(super) fn read(path: &Path, pid: Option<u32>) -> io::Result<(u32, String)> {
    read_within(TIME_LIMIT, path, pid)
}

fn read_within(limit: Duration, path: &Path, pid: Option<u32>) -> io::Result<(u32, String)> {
    let start = Instant::now();
    let mut stream = connect(path)?;
    if let Some(pid) = pid {
        check_owner(&stream, pid)?;
    }
    let owner = getsockopt(&stream, sockopt::PeerCredentials)?;
    stream.set_write_timeout(Some(limit))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = limit.saturating_sub(start.elapsed());
        if left.is_zero() || bytes.len() > LONGEST {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => break,
            count => bytes.extend(&part[..count]),
        }
    }
    let text = String::from_utf8_lossy(&bytes);
    let (_, body) = text
        .split_once("\r\n\r\n")
        .ok_or(io::ErrorKind::InvalidData)?;
    Ok((owner.pid().unsigned_abs(), body.to_owned()))
}

/// Returns the name of the process, without control characters.
pub(super) fn command(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    plain(name.trim())
}

/// Returns the first 60 characters of a text from another process, with each control character
/// replaced by `?`.
pub(super) fn plain(text: &str) -> String {
    let shown = text.chars().map(|c| if c.is_control() { '?' } else { c });
    shown.take(60).collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rdmsg-top-{name}-{}", std::process::id()))
    }

    #[test]
    fn silent_process_times_out() {
        let path = path("silent");
        let listener = UnixListener::bind(&path).unwrap();
        let start = Instant::now();
        assert!(read(&path, None).is_err());
        assert!(start.elapsed() >= TIME_LIMIT);
        drop(listener);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn full_queue_is_an_error_at_once() {
        let path = path("full");
        let listener = UnixListener::bind(&path).unwrap();
        let waiting: Vec<_> = std::iter::from_fn(|| connect(&path).ok()).collect();
        let error = read(&path, None).unwrap_err();
        assert_eq!(error.to_string(), "the queue of the socket is full");
        drop((listener, waiting));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn socket_of_another_process_is_not_asked() {
        let path = path("other");
        let listener = UnixListener::bind(&path).unwrap();
        let own = std::process::id();
        let error = read(&path, Some(own + 1)).unwrap_err();
        let expected = format!(
            "process {own} listens on the socket, not process {}",
            own + 1
        );
        assert_eq!(error.to_string(), expected);
        drop(listener);
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn process_of_a_named_socket_is_known() {
        let path = path("named");
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; 25]).unwrap();
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\nbody").unwrap();
        });
        let read = read_within(60 * TIME_LIMIT, &path, None).unwrap();
        assert_eq!(read, (std::process::id(), "body".to_owned()));
        thread.join().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn endless_answer_times_out() {
        let path = path("endless");
        let listener = UnixListener::bind(&path).unwrap();
        let thread = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            while stream.write_all(&[b'x'; 1 << 16]).is_ok() {}
        });
        assert!(read(&path, None).is_err());
        thread.join().unwrap();
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn sockets_are_known_by_their_names() {
        let folder = path("names");
        fs::create_dir(&folder).unwrap();
        for name in ["17.sock", "x.sock", "18", "-1.sock"] {
            fs::write(folder.join(name), "").unwrap();
        }
        assert_eq!(sockets(&folder), [(17, folder.join("17.sock"))]);
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(plain("a\x1b[2J"), "a?[2J");
    }
}
