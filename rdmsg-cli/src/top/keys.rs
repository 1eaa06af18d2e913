use std::{
    io::{self, IsTerminal, Read},
    os::fd::AsFd,
    thread,
    time::Duration,
};

use nix::{
    sys::termios::{LocalFlags, SetArg, Termios, tcgetattr, tcsetattr},
    unistd::{getpgrp, tcgetpgrp},
};
use rdmsg::crossbeam_channel::{Receiver, Select, bounded, never};

use crate::process::Stop;

/// The keys pressed on the terminal of stdin. Dropping this value restores the terminal mode.
#[derive(Debug)]
pub(super) struct Keys {
    pressed: Receiver<u8>,
    /// The terminal mode before this program changed it, or `None` if the mode is unchanged.
    before: Option<Termios>,
}

/// The event that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    TimePassed,
    /// A signal, or the key `q`.
    Quit,
    /// A key other than `q`.
    Key,
}

impl Keys {
    /// Starts a thread that reads the keys, if `is_live` is true and [`set_mode`] succeeds.
    pub(super) fn read(is_live: bool) -> Self {
        let mode = if is_live { set_mode() } else { None };
        let (sender, pressed) = bounded(8);
        let reading = mode.is_some().then(|| {
            let read = move || {
                let mut bytes = [0; 32];
                // An arrow key sends several bytes. One read returns all of them.
                while let Ok(1..) = io::stdin().lock().read(&mut bytes) {
                    // Keys can be pressed faster than they are handled. If the channel is full,
                    // ignore the key.
                    let _ = sender.try_send(bytes[0]);
                }
            };
            thread::Builder::new().name("rdmsg-keys".into()).spawn(read)
        });
        match reading {
            Some(Ok(_)) => Self {
                pressed,
                before: mode,
            },
            Some(Err(_)) | None => Self {
                pressed: never(),
                before: mode,
            },
        }
    }

    /// Returns true if the terminal mode was changed to read keys.
    pub(super) fn are_read(&self) -> bool {
        self.before.is_some()
    }

    /// Waits until the time has passed, a signal arrives or a key is pressed. With `None` there is
    /// no time limit.
    pub(super) fn wait(&self, time: Option<Duration>, stop: &Stop) -> Waited {
        let mut select = Select::new();
        select.recv(stop.channel());
        let key = select.recv(&self.pressed);
        // These calls only wait: they do not remove the signal or the key from its channel.
        let ready = match time {
            Some(time) => select.ready_timeout(time).ok(),
            None => Some(select.ready()),
        };
        if stop.is_requested() {
            return Waited::Quit;
        }
        match ready.filter(|at| *at == key).map(|_| self.pressed.recv()) {
            Some(Ok(b'q' | b'Q')) => Waited::Quit,
            Some(Ok(_)) => Waited::Key,
            // The key thread has ended, because the terminal was closed.
            Some(Err(_)) => Waited::Quit,
            None => Waited::TimePassed,
        }
    }
}

/// Sets the terminal mode: no echo, and each key is available immediately. Returns the previous
/// mode.
///
/// Changes nothing and returns `None` if stdin is not a terminal or if this process is in the
/// background. The kernel would stop a background process that changes the terminal mode.
fn set_mode() -> Option<Termios> {
    let stdin = io::stdin();
    let fd = stdin.as_fd();
    if !stdin.is_terminal() || tcgetpgrp(fd) != Ok(getpgrp()) {
        return None;
    }
    let before = tcgetattr(fd).ok()?;
    let mut mode = before.clone();
    mode.local_flags -= LocalFlags::ICANON | LocalFlags::ECHO;
    tcsetattr(fd, SetArg::TCSANOW, &mode).ok()?;
    Some(before)
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The call fails if the terminal was closed.
            let _ = tcsetattr(io::stdin(), SetArg::TCSANOW, before);
        }
    }
}
