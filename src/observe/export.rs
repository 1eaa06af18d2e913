use std::{
    env,
    fs::{self, DirBuilder, Permissions},
    io::{self, Read, Write},
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt},
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use nix::unistd::geteuid;

use super::registry::{enable, snapshot};
use crate::os::{Process, leak};

/// The time limit of one request. The thread serves one request at a time.
const TIME_LIMIT: Duration = Duration::from_secs(1);

/// The delay after an `accept` that failed, for instance because the process has too many open
/// files.
const PAUSE: Duration = Duration::from_millis(100);

/// The number of bytes after which the thread stops reading a request. Later bytes are ignored.
const LONGEST: usize = 4096;

/// The export of this process's statistics on a local socket. Dropping it ends the export.
///
/// `rdmsg top` shows these statistics. The socket answers every HTTP request with the text of
/// [`Snapshot::to_prometheus`](super::Snapshot::to_prometheus):
///
/// ```sh
/// curl --unix-socket /run/user/1000/rdmsg/4711.sock http://localhost/metrics
/// ```
///
/// [`start`](Self::start) creates the socket in a folder that only this user can enter. A separate
/// thread serves the socket.
///
/// # Examples
///
/// ```no_run
/// use rdmsg::{Listener, observe::Export};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let export = Export::start()?; // earlier connections are not listed
/// let listener = Listener::bind("0.0.0.0:7471")?;
/// // …
/// # drop((export, listener));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Export {
    /// The process that started the export.
    process: Process,
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Export {
    /// Starts the export in the folder that `rdmsg top` searches. The name of the socket is the
    /// process ID, followed by `.sock`.
    ///
    /// The folder is `rdmsg` in `XDG_RUNTIME_DIR`. If this variable is not set or is not an
    /// absolute path, the folder is `rdmsg` in `/run/user/UID`, or `/tmp/rdmsg-UID` if
    /// `/run/user/UID` does not exist.
    ///
    /// # Errors
    ///
    /// Fails when the folder or the socket cannot be created, or the folder belongs to another
    /// user.
    pub fn start() -> io::Result<Self> {
        let folder = Self::folder();
        make_private(&folder)?;
        Self::start_at(folder.join(format!("{}.sock", process::id())))
    }

    /// Returns the folder that [`start`](Self::start) uses. It contains the sockets of this user's
    /// processes.
    #[must_use]
    pub fn folder() -> PathBuf {
        Self::folder_in(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
    }

    /// Returns the folder for this value of `XDG_RUNTIME_DIR`.
    fn folder_in(runtime: Option<PathBuf>) -> PathBuf {
        let user = geteuid();
        let runtime = runtime.filter(|path| path.is_absolute());
        let usual = PathBuf::from(format!("/run/user/{user}"));
        let runtime = runtime.or_else(|| usual.is_dir().then_some(usual));
        runtime.map_or_else(
            || PathBuf::from(format!("/tmp/rdmsg-{user}")),
            |runtime| runtime.join("rdmsg"),
        )
    }

    /// Starts the export at this path. Every user who can enter the folder and has write permission
    /// for the socket can read the statistics: see unix(7).
    ///
    /// # Errors
    ///
    /// Fails if the socket cannot be created, for example with `AddrInUse` if a file exists at the
    /// path. A socket that an ended process has left at the path is replaced.
    pub fn start_at(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref().to_owned();
        // A killed process may have left a socket at this path. The socket is removed if nothing
        // accepts connections on it. Any other file stays.
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|it| it.file_type().is_socket());
        if is_socket && UnixStream::connect(&path).is_err() {
            let _ = fs::remove_file(&path);
        }
        let listener = UnixListener::bind(&path)?;
        enable();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new()
            .name("rdmsg-export".into())
            .spawn(move || serve(&listener, &stopped))
            .inspect_err(|_| {
                // Without the thread, nothing would answer requests to the socket.
                let _ = fs::remove_file(&path);
            })?;
        Ok(Self {
            process: Process::this(),
            path,
            stop,
            thread: Some(thread),
        })
    }

    /// Returns the path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        if !self.process.is_this() {
            // The socket and the thread belong to the parent.
            leak(self.thread.take());
            return;
        }
        self.stop.store(true, Ordering::Release);
        // The thread waits in `accept`; this connection wakes it.
        let woken = UnixStream::connect(&self.path);
        let _ = fs::remove_file(&self.path);
        if woken.is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(listener: &UnixListener, stop: &AtomicBool) {
    loop {
        let accepted = listener.accept();
        if stop.load(Ordering::Acquire) {
            return;
        }
        match accepted {
            Ok((stream, _)) => {
                if let Err(error) = answer(stream) {
                    debug!(Statistics, "statistics: cannot answer a request: {error}");
                }
            }
            Err(error) => {
                warn!(
                    Statistics,
                    "statistics: cannot accept a request: {error}; retrying in {PAUSE:?}"
                );
                thread::sleep(PAUSE);
            }
        }
    }
}

/// Answers a request with the statistics of this process, whatever the request contains.
fn answer(mut stream: UnixStream) -> io::Result<()> {
    let start = Instant::now();
    stream.set_write_timeout(Some(TIME_LIMIT))?;
    let mut request: Vec<u8> = Vec::new();
    let mut part = [0; 512];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < LONGEST {
        let left = TIME_LIMIT.saturating_sub(start.elapsed());
        // `set_read_timeout` refuses a timeout of zero, so the minimum is 1 ms.
        stream.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match stream.read(&mut part)? {
            0 => break,
            count => request.extend(&part[..count]),
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    let text = snapshot().to_prometheus();
    let head = format!(
        "HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

/// Creates the folder if it does not exist, and ensures that only this user can enter it. Fails if
/// another user owns the folder, which is possible in /tmp.
fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let metadata = fs::symlink_metadata(folder)?;
    if !metadata.is_dir() || metadata.uid() != geteuid().as_raw() {
        let text = format!("{} is not a directory of this user", folder.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    if metadata.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> PathBuf {
        env::temp_dir().join(format!("rdmsg-export-{name}-{}", process::id()))
    }

    fn ask(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn export_answers_until_it_is_dropped() {
        let path = path("answered");
        let export = Export::start_at(&path).unwrap();
        assert_eq!(export.path(), path);
        let long = vec![b'x'; LONGEST];
        for request in [&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"[..], &long] {
            let text = ask(&path, request);
            assert!(text.starts_with("HTTP/1.0 200 OK\r\n"), "{text}");
            assert!(text.contains("\nrdmsg_connections "), "{text}");
        }
        drop(export);
        assert!(!path.exists());
    }

    #[test]
    fn folder_is_never_in_the_working_directory() {
        let unset = Export::folder_in(None);
        assert!(unset.is_absolute());
        for wrong in ["", ".", "run/user"] {
            assert_eq!(Export::folder_in(Some(wrong.into())), unset, "{wrong:?}");
        }
        let set = Export::folder_in(Some("/run/mine".into()));
        assert_eq!(set, Path::new("/run/mine/rdmsg"));
    }

    #[test]
    fn silent_client_delays_others_by_one_timeout() {
        let path = path("silent");
        let _export = Export::start_at(&path).unwrap();
        let mut silent = UnixStream::connect(&path).unwrap();
        assert!(ask(&path, b"GET / HTTP/1.0\r\n\r\n").starts_with("HTTP/1.0 200 OK"));
        let mut text = String::new();
        silent.read_to_string(&mut text).unwrap();
        assert_eq!(
            text, "",
            "a connection without a request must get no answer"
        );
    }

    #[test]
    fn only_a_killed_processs_socket_is_replaced() {
        let path = path("again");
        drop(UnixListener::bind(&path).unwrap());
        let export = Export::start_at(&path).unwrap();
        let error = Export::start_at(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        drop(export);
        fs::write(&path, "kept").unwrap();
        let error = Export::start_at(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        assert_eq!(fs::read(&path).unwrap(), b"kept");
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_folder_that_others_may_enter_is_closed_to_them() {
        let folder = path("folder");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        make_private(&folder).unwrap();
        assert_eq!(fs::metadata(&folder).unwrap().mode() & 0o777, 0o700);
        fs::remove_dir(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        assert!(make_private(&folder).is_err(), "a file must be refused");
        fs::remove_file(&folder).unwrap();
    }
}
