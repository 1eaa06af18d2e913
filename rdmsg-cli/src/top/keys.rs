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

use crate::stop::Stop;

/// The keys that are pressed on the terminal of stdin. The drop restores the mode of the terminal.
#[derive(Debug)]
pub(super) struct Keys {
    pressed: Receiver<u8>,
    /// The mode of the terminal before this program changed it. `None` if it was not changed.
    before: Option<Termios>,
}

/// The event that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    TimePassed,
    /// A signal, or the key `q`.
    Quit,
    /// Another key.
    Key,
}

impl Keys {
    /// Reads the keys in a thread, if stdin is a terminal and this process is in the foreground.
    /// The kernel stops a process in the background that changes the terminal's mode.
    pub(super) fn read(is_live: bool) -> Self {
        let mode = if is_live { set_mode() } else { None };
        let (sender, pressed) = bounded(8);
        let reading = mode.is_some().then(|| {
            let read = move || {
                let mut bytes = [0; 32];
                // An arrow key is several bytes, which arrive together.
                while let Ok(1..) = io::stdin().lock().read(&mut bytes) {
                    // The send fails if the user presses keys faster than they are handled.
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

    /// Whether keys are read.
    pub(super) fn are_read(&self) -> bool {
        self.before.is_some()
    }

    /// Waits for this time, or until a signal arrives or a key is pressed. `None` is no time limit.
    pub(super) fn wait(&self, time: Option<Duration>, stop: &Stop) -> Waited {
        let mut select = Select::new();
        select.recv(stop.channel());
        let key = select.recv(&self.pressed);
        // The wait receives nothing, so the signal stays in the channel.
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
            // The terminal was closed, or there was no key.
            Some(Err(_)) => Waited::Quit,
            None => Waited::TimePassed,
        }
    }
}

/// Makes the terminal report each key at once and show none. Returns the mode before.
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
