//! Copying files with messages of rdmsg: both sides exchange lines of words, and pieces of the file
//! are sent from the sender's memory without a copy.
//!
//! The receiver sends the part that it has: `have LENGTH DIGEST`. The sender compares that with its
//! own file, sends `from OFFSET SIZE`, the pieces from that offset, and `done DIGEST` of the whole
//! file. The receiver writes to `NAME.part`, which stays after an interruption. It renames the file
//! to `NAME` when it is complete and its digest is correct.

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

/// The length of a piece, in bytes.
pub const PIECE: u64 = 1 << 20;

/// The number of bytes that are read at a time to hash a file.
const BLOCK: usize = 256 * 1024;

/// The result of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "this is all")]
pub struct Copied {
    /// The number of bytes that the receiver had before.
    pub from: u64,
    /// The size of the file in bytes.
    pub size: u64,
}

/// Reports the progress: the number of bytes that the receiver has, and the size.
pub type Progress<'a> = &'a mut (dyn FnMut(u64, u64) + Send);

/// An open file, with the digest of the bytes so far.
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

    /// Reads up to an offset, or to the end of the file.
    fn skip_to(&mut self, place: u64) -> std::io::Result<()> {
        let mut block = vec![0; BLOCK];
        while self.at < place {
            let most = BLOCK.min(usize::try_from(place - self.at).unwrap_or(BLOCK));
            let read = self.file.read(&mut block[..most])?;
            if read == 0 {
                break;
            }
            self.took(&block[..read]);
        }
        Ok(())
    }

    fn took(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        self.at += bytes.len() as u64;
    }

    fn digest(&self) -> String {
        let digest = self.digest.clone().finish();
        let digits = digest.as_ref().iter().map(|byte| format!("{byte:02x}"));
        digits.collect()
    }
}

/// The part of a file that has been received.
pub struct Part {
    path: PathBuf,
    /// The file is locked, so that no other process receives it.
    hashed: Hashed<LockedFile>,
}

/// A locked file that can be read.
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
    /// Opens the present part of a file, and reads it.
    ///
    /// # Errors
    ///
    /// Errors of the file.
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
            let file = Flock::lock(file, FlockArg::LockExclusiveNonblock)
                .map_err(|_| format!("{} is being received already", path.display()))?;
            let mut hashed = Hashed::new(LockedFile(file));
            hashed.skip_to(u64::MAX)?;
            Ok(Self { path, hashed })
        })
        .await
    }

    /// Returns the present part in the words of the protocol.
    #[must_use]
    pub fn have(&self) -> String {
        format!("{} {}", self.hashed.at, self.hashed.digest())
    }

    /// Receives the missing part, and renames the file.
    ///
    /// # Errors
    ///
    /// Errors of the connection and of the file. The received part stays, unless its digest is
    /// wrong.
    pub async fn receive(mut self, endpoint: &Endpoint, progress: Progress<'_>) -> Result<Copied> {
        let line = words(&endpoint.recv().await?)?;
        let [from, size] = numbers(&line, "from")?;
        if from == 0 {
            self = self.restart().await?;
        }
        if from != self.hashed.at || from > size {
            return Err("the sender goes on from where nobody is".into());
        }
        progress(from, size);
        while self.hashed.at < size {
            let piece = endpoint.recv().await?;
            if piece.is_empty() || piece.len() as u64 > size - self.hashed.at {
                return Err("the sender sends more than it said".into());
            }
            self = self.append(piece).await?;
            progress(self.hashed.at, size);
        }
        let line = words(&endpoint.recv().await?)?;
        if line != ["done", &self.hashed.digest()] {
            let part = part_of(&self.path);
            blocking(move || Ok(fs::remove_file(part)?)).await?;
            return Err("the digests differ: the file changed while it was read".into());
        }
        blocking(move || {
            self.hashed.file.0.sync_all()?;
            Ok(fs::rename(part_of(&self.path), &self.path)?)
        })
        .await?;
        Ok(Copied { from, size })
    }

    /// Starts again, because the present part belongs to another file.
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

    /// Writes a message from the memory in which it arrived.
    async fn append(mut self, piece: Message) -> Result<Self> {
        blocking(move || {
            self.hashed.file.0.write_all(&piece)?;
            self.hashed.took(&piece);
            Ok(self)
        })
        .await
    }
}

/// Sends a file to a receiver that has a part of it.
///
/// # Errors
///
/// Errors of the connection and of the file.
pub async fn send(
    endpoint: &Endpoint,
    path: &Path,
    have: &[&str],
    progress: Progress<'_>,
) -> Result<Copied> {
    let [len, digest] = have else {
        return Err("nobody says what it has".into());
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
            hashed.took(&piece);
            Ok((hashed, piece))
        })
        .await?;
        // The send waits only while several pieces are in flight.
        endpoint.send(piece).await?;
        progress(hashed.at, size);
    }
    let done = format!("done {}", hashed.digest());
    endpoint.send(done.as_bytes()).await?;
    Ok(Copied { from, size })
}

/// Opens a file at the end of the receiver's part, or at the beginning if that belongs to another
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
/// Errors of the connection, of the file and of the server.
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
/// Errors of the connection, of the file and of the server.
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
            // The file may not exist; then an empty part must not remain.
            let part = part_of(path);
            if fs::metadata(&part).is_ok_and(|part| part.len() == 0) {
                fs::remove_file(part)?;
            }
            return Err(error);
        }
    };
    // The file is complete, even if the sender does not get the confirmation.
    let _ = endpoint.send(b"ok").await;
    Ok(copied)
}

/// Answers a client of a server for the files of a folder.
///
/// # Errors
///
/// Errors of the connection and of the file. The client gets them as well.
pub async fn serve(endpoint: &Endpoint, folder: &Path, progress: Progress<'_>) -> Result<Copied> {
    let request = words(&endpoint.recv().await?)?;
    let served = answer(endpoint, folder, &request, progress).await;
    if let Err(error) = &served {
        // This fails, too, if the connection failed.
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
        _ => Err("there is no such request".into()),
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

/// Returns the path of the file that a client names. It must be in the folder itself.
fn in_folder(folder: &Path, name: &str) -> Result<PathBuf> {
    let is_plain = Path::new(name).file_name().is_some_and(|last| last == name);
    if !is_plain || name.starts_with('.') || name.ends_with(".part") {
        return Err(format!("{name} is no name of a file here").into());
    }
    Ok(folder.join(name))
}

fn part_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    name.into()
}

/// Splits a line into words. A name may contain blanks, so the last word has the rest of the line.
fn words(message: &[u8]) -> Result<Vec<String>> {
    let line = std::str::from_utf8(message).map_err(|_| "a piece comes where none should")?;
    let most = match line.split(' ').next() {
        Some("put" | "error") => 2,
        Some("get") => 4,
        _ => 3,
    };
    Ok(line.splitn(most, ' ').map(str::to_owned).collect())
}

/// Returns the words after the first one, which must be `first`.
fn expect<'a>(line: &'a [String], first: &str) -> Result<Vec<&'a str>> {
    match line.split_first() {
        Some((word, rest)) if word == first => Ok(rest.iter().map(String::as_str).collect()),
        Some((word, [text])) if word == "error" => Err(format!("the other side: {text}").into()),
        _ => Err(format!("{first} was expected, and {} came", line.join(" ")).into()),
    }
}

fn numbers(line: &[String], first: &str) -> Result<[u64; 2]> {
    match *expect(line, first)? {
        [one, other] => Ok([one.parse()?, other.parse()?]),
        _ => Err("two numbers were expected".into()),
    }
}

/// Runs work that waits for a disk on a thread that blocks no task.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    spawn_blocking(work).await?
}
