//! Copies files over rdmsg. Client and server exchange short text messages. The sender reads each
//! piece of the file into a send buffer, which rdmsg sends without another copy.
//!
//! The receiver may already have the first part of the file, and reports the LENGTH and the DIGEST
//! of this part. If the server is the receiver, it replies to the client's message `put NAME` with
//! `have LENGTH DIGEST`. If the client is the receiver, it sends `get LENGTH DIGEST NAME`. The
//! sender hashes the first LENGTH bytes of its file. If their digest is DIGEST, the copy starts at
//! offset LENGTH. Otherwise it starts at offset 0. The sender sends `from OFFSET SIZE`, where SIZE
//! is the size of the file. Then it sends the pieces from OFFSET on, and at the end `done DIGEST`
//! with the digest of the whole file.
//!
//! The receiver writes to `NAME.part`, which remains after an interruption. When the file is
//! complete and its digest is correct, the receiver renames it to `NAME`.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use nix::fcntl::{Flock, FlockArg};
use rdmsg::{Message, SendBuffer, tokio::Endpoint};
use ring::digest::{Context, SHA256};
use tokio::task::spawn_blocking;

use crate::Result;

/// The length of a piece in bytes. The final piece of a file can be shorter.
pub const PIECE: u64 = 1 << 20;

/// The maximum number of bytes that one read returns while a file is hashed.
const BLOCK: usize = 256 * 1024;

/// The result of a complete copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "this is all")]
pub struct Copied {
    /// The offset in bytes at which the copy started. The receiver already had the bytes before
    /// this offset.
    pub from: u64,
    /// The size of the file in bytes.
    pub size: u64,
}

/// A callback that shows progress. Its arguments are the number of bytes that the receiver has, and
/// the size of the file in bytes.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// An open file at the offset `at`, with the digest of the bytes before that offset.
struct Hashed<F = File> {
    file: F,
    at: u64,
    digest: Context,
}

impl<F: Read> Hashed<F> {
    fn new(file: F) -> Self {
        Self {
            file,
            at: 0,
            digest: Context::new(&SHA256),
        }
    }

    /// Reads and hashes the bytes before `offset`. Stops earlier if the file is shorter.
    fn skip_to(&mut self, offset: u64) -> std::io::Result<()> {
        let mut block = vec![0; BLOCK];
        while self.at < offset {
            let most = BLOCK.min(usize::try_from(offset - self.at).unwrap_or(BLOCK));
            let read = self.file.read(&mut block[..most])?;
            if read == 0 {
                break;
            }
            self.hash(&block[..read]);
        }
        Ok(())
    }

    fn hash(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.at += bytes.len() as u64;
    }

    fn digest(&self) -> String {
        let digest = self.digest.clone().finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }
}

/// The part of a file that the receiver already has: `NAME.part`.
pub struct Part {
    path: PathBuf,
    /// The open file. It is locked, so that no other copy writes to it concurrently.
    hashed: Hashed<LockedFile>,
}

/// A locked file that implements `Read`.
struct LockedFile(Flock<File>);

impl Read for LockedFile {
    fn read(&mut self, block: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(block)
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Part({}, {})", self.path.display(), self.hashed.at)
    }
}

impl Part {
    /// Opens or creates `NAME.part`, locks it, and hashes its bytes.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be opened or read, or if another copy has locked it.
    pub async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(part_of(&path))
                .map_err(|error| format!("{}: {error}", path.display()))?;
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|_| {
                format!(
                    "{} is already being received by another copy",
                    path.display()
                )
            })?;
            let mut hashed = Hashed::new(LockedFile(file));
            hashed.skip_to(u64::MAX)?;
            Ok(Self { path, hashed })
        })
        .await
    }

    /// Returns the length and the digest of the part in the format of the protocol.
    #[must_use]
    pub fn have(&self) -> String {
        format!("{} {}", self.hashed.at, self.hashed.digest())
    }

    /// Receives the missing pieces, verifies the digest, and renames the file.
    ///
    /// # Errors
    ///
    /// Fails if the connection breaks, the sender violates the protocol, the file cannot be
    /// written, or the digest is wrong. After a wrong digest, removes `NAME.part`. After any other
    /// error, `NAME.part` remains.
    pub async fn receive(mut self, endpoint: &Endpoint, progress: Progress<'_>) -> Result<Copied> {
        let line = words(&endpoint.recv().await?)?;
        let [from, size] = numbers(&line, "from")?;
        if from == 0 {
            self = self.restart().await?;
        }
        if from != self.hashed.at || from > size {
            return Err("the sender's offset is not the part's length, or is too large".into());
        }
        progress(from, size);
        while self.hashed.at < size {
            let piece = endpoint.recv().await?;
            if piece.is_empty() || piece.len() as u64 > size - self.hashed.at {
                return Err("the sender sent an empty piece, or more bytes than announced".into());
            }
            self = self.append(piece).await?;
            progress(self.hashed.at, size);
        }
        let line = words(&endpoint.recv().await?)?;
        if line != ["done", &self.hashed.digest()] {
            let part = part_of(&self.path);
            blocking(move || Ok(fs::remove_file(part)?)).await?;
            return Err("the digest is wrong: the part differs from the sender's bytes".into());
        }
        blocking(move || {
            self.hashed.file.0.sync_all()?;
            Ok(fs::rename(part_of(&self.path), &self.path)?)
        })
        .await?;
        Ok(Copied { from, size })
    }

    /// Truncates the part to length 0. The receiver does this when the sender starts at offset 0,
    /// because the part can belong to another file.
    async fn restart(self) -> Result<Self> {
        blocking(move || {
            let Self { path, hashed } = self;
            let mut file = hashed.file;
            file.0.set_len(0)?;
            file.0.seek(SeekFrom::Start(0))?;
            let hashed = Hashed::new(file);
            Ok(Self { path, hashed })
        })
        .await
    }

    /// Writes a received message to the file directly from the receive buffer.
    async fn append(mut self, piece: Message) -> Result<Self> {
        blocking(move || {
            self.hashed.file.0.write_all(&piece)?;
            self.hashed.hash(&piece);
            Ok(self)
        })
        .await
    }
}

/// Sends a file. Omits the first part of the file if the receiver already has it. `have` contains
/// the length and the digest of the receiver's part.
///
/// # Errors
///
/// Fails if the connection breaks, the file cannot be read, or the receiver violates the protocol.
pub async fn send(
    endpoint: &Endpoint,
    path: &Path,
    have: &[&str],
    progress: Progress<'_>,
) -> Result<Copied> {
    let [len, digest] = have else {
        return Err("the receiver did not report the length and the digest of its part".into());
    };
    let (len, digest) = (len.parse()?, (*digest).to_owned());
    let path = path.to_owned();
    let (mut hashed, size) = blocking(move || open_at(&path, len, &digest)).await?;
    let from = hashed.at;
    endpoint
        .send(format!("from {from} {size}").as_bytes())
        .await?;
    progress(from, size);
    while hashed.at < size {
        let len = PIECE.min(size - hashed.at) as usize;
        let mut piece = SendBuffer::new(endpoint.get_ref(), len)?;
        (hashed, piece) = blocking(move || {
            hashed.file.read_exact(&mut piece)?;
            hashed.hash(&piece);
            Ok((hashed, piece))
        })
        .await?;
        // The send does not wait for the arrival of the piece. It waits only while several earlier
        // pieces are in flight.
        endpoint.send(piece).await?;
        progress(hashed.at, size);
    }
    let done = format!("done {}", hashed.digest());
    endpoint.send(done.as_bytes()).await?;
    Ok(Copied { from, size })
}

/// Opens a file, and hashes its first `len` bytes. If their digest is `digest`, the returned file
/// is at offset `len`. If the digest differs or the file is shorter than `len`, the receiver's part
/// belongs to another file, and the returned file is at offset 0. Also returns the size of the
/// file.
fn open_at(path: &Path, len: u64, digest: &str) -> Result<(Hashed, u64)> {
    let named = path.file_name().unwrap_or_default().display();
    let open = || File::open(path).map_err(|error| format!("{named}: {error}"));
    let mut hashed = Hashed::new(open()?);
    let size = hashed.file.metadata()?.len();
    if len <= size {
        hashed.skip_to(len)?;
        if hashed.digest() == digest {
            return Ok((hashed, size));
        }
    }
    Ok((Hashed::new(open()?), size))
}

/// Copies a file to a server.
///
/// # Errors
///
/// Fails if the connection breaks, the file cannot be read, or the server reports an error.
pub async fn put(
    endpoint: &Endpoint,
    path: &Path,
    name: &str,
    progress: Progress<'_>,
) -> Result<Copied> {
    endpoint.send(format!("put {name}").as_bytes()).await?;
    let answer = words(&endpoint.recv().await?)?;
    let have: Vec<&str> = expect(&answer, "have")?;
    let copied = send(endpoint, path, &have, progress).await?;
    expect(&words(&endpoint.recv().await?)?, "ok")?;
    Ok(copied)
}

/// Copies a file from a server.
///
/// # Errors
///
/// Fails if the connection breaks, the file cannot be written, or the server reports an error.
pub async fn get(
    endpoint: &Endpoint,
    path: &Path,
    name: &str,
    progress: Progress<'_>,
) -> Result<Copied> {
    let part = Part::open(path).await?;
    let have = part.have();
    endpoint
        .send(format!("get {have} {name}").as_bytes())
        .await?;
    let copied = match part.receive(endpoint, progress).await {
        Ok(copied) => copied,
        Err(error) => {
            // `Part::open` creates an empty part even if the server does not have the file. If the
            // part is still empty, remove it.
            let part = part_of(path);
            if fs::metadata(&part).is_ok_and(|part| part.len() == 0) {
                fs::remove_file(part)?;
            }
            return Err(error);
        }
    };
    // The file is complete, so ignore a failure to send this confirmation.
    let _ = endpoint.send(b"ok").await;
    Ok(copied)
}

/// Serves one request of a client. The request reads or writes a file in `folder`. If the request
/// fails, sends the error to the client and returns it.
///
/// # Errors
///
/// Fails if the connection breaks, or if the file cannot be read or written.
pub async fn serve(endpoint: &Endpoint, folder: &Path, progress: Progress<'_>) -> Result<Copied> {
    let request = words(&endpoint.recv().await?)?;
    let served = answer(endpoint, folder, &request, progress).await;
    if let Err(error) = &served {
        // Ignore an error of this send: the connection may be broken.
        let _ = endpoint.send(format!("error {error}").as_bytes()).await;
    }
    served
}

async fn answer(
    endpoint: &Endpoint,
    folder: &Path,
    request: &[String],
    progress: Progress<'_>,
) -> Result<Copied> {
    match &*request.iter().map(String::as_str).collect::<Vec<_>>() {
        ["put", name] => receive(endpoint, &in_folder(folder, name)?, progress).await,
        ["get", len, digest, name] => {
            let path = in_folder(folder, name)?;
            let copied = send(endpoint, &path, &[len, digest], progress).await?;
            expect(&words(&endpoint.recv().await?)?, "ok")?;
            Ok(copied)
        }
        _ => Err("the request is neither `put NAME` nor `get LENGTH DIGEST NAME`".into()),
    }
}

async fn receive(endpoint: &Endpoint, path: &Path, progress: Progress<'_>) -> Result<Copied> {
    let part = Part::open(path).await?;
    let have = format!("have {}", part.have());
    endpoint.send(have.as_bytes()).await?;
    let copied = part.receive(endpoint, progress).await?;
    endpoint.send(b"ok").await?;
    Ok(copied)
}

/// Returns the path of the file `name` in `folder`. Rejects names that contain a directory, so that
/// clients can access only files directly in `folder`. Also rejects the names of hidden files and
/// of partial files (`.part`).
fn in_folder(folder: &Path, name: &str) -> Result<PathBuf> {
    let is_plain = Path::new(name).file_name().is_some_and(|last| last == name);
    if !is_plain || name.starts_with('.') || name.ends_with(".part") {
        return Err(format!("{name} is not a permitted file name").into());
    }
    Ok(folder.join(name))
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Splits a text message into words. The type of the message determines the maximum number of
/// words. The final word contains the rest of the message, because a file name or an error text can
/// contain spaces.
fn words(message: &[u8]) -> Result<Vec<String>> {
    let line = std::str::from_utf8(message).map_err(|_| "received a piece instead of text")?;
    let most = match line.split(' ').next() {
        Some("put" | "error") => 2,
        Some("get") => 4,
        _ => 3,
    };
    Ok(line.splitn(most, ' ').map(str::to_owned).collect())
}

/// Returns the words after the first word. Fails if the first word is not `first`.
fn expect<'a>(line: &'a [String], first: &str) -> Result<Vec<&'a str>> {
    match line.split_first() {
        Some((word, rest)) if word == first => Ok(rest.iter().map(String::as_str).collect()),
        Some((word, [text])) if word == "error" => Err(format!("the peer reports: {text}").into()),
        _ => Err(format!("expected {first}, but received {}", line.join(" ")).into()),
    }
}

fn numbers(line: &[String], first: &str) -> Result<[u64; 2]> {
    match *expect(line, first)? {
        [one, other] => Ok([one.parse()?, other.parse()?]),
        _ => Err("expected two numbers after the word".into()),
    }
}

/// Runs `work` on a thread of the blocking pool, so that its file accesses do not block other
/// tasks.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await?
}
