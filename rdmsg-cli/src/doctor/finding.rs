use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// One check and its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The subject of the check, in a word.
    pub(crate) subject: String,
    pub(crate) state: State,
    /// The host of the subject.
    pub(crate) host: Host,
    /// The result.
    pub(crate) what: String,
    /// Why that matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// The commands that remove the problem, one after the other, on that host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) mend: Vec<String>,
    /// The commands that make the change permanent, beyond this shell or the next boot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keep: Vec<String>,
    /// A remedy without a command, or a caution about a command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// The severity of a finding. The last one is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Ok,
    /// Good to know.
    Note,
    /// It works, but not as well as it could.
    Warning,
    /// RDMA does not work.
    Error,
}

/// The host that a finding concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Host {
    /// The host on which the doctor runs.
    Here,
    /// The host that the command line names.
    Peer,
}

impl Finding {
    fn new(state: State, subject: &str, what: impl Into<String>) -> Self {
        Self {
            subject: subject.into(),
            state,
            host: Host::Here,
            what: what.into(),
            why: None,
            mend: Vec::new(),
            keep: Vec::new(),
            hint: None,
        }
    }

    pub(crate) fn ok(subject: &str, what: impl Into<String>) -> Self {
        Self::new(State::Ok, subject, what)
    }

    pub(crate) fn note(subject: &str, what: impl Into<String>) -> Self {
        Self::new(State::Note, subject, what)
    }

    pub(crate) fn warning(subject: &str, what: impl Into<String>) -> Self {
        Self::new(State::Warning, subject, what)
    }

    pub(crate) fn error(subject: &str, what: impl Into<String>) -> Self {
        Self::new(State::Error, subject, what)
    }

    pub(crate) fn because(mut self, why: impl Into<String>) -> Self {
        self.why = Some(why.into());
        self
    }

    pub(crate) fn mend(mut self, command: impl Into<String>) -> Self {
        self.mend.push(command.into());
        self
    }

    pub(crate) fn mend_all(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.mend.extend(commands);
        self
    }

    pub(crate) fn keep(mut self, command: impl Into<String>) -> Self {
        self.keep.push(command.into());
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn at(mut self, host: Host) -> Self {
        self.host = host;
        self
    }
}

/// Returns a command that needs root, as this user types it.
pub(crate) fn as_root(command: &str) -> String {
    format!("{}{command}", sudo())
}

/// Returns a command that writes a line to a file of root, as this user types it.
pub(crate) fn write_line(line: &str, file: &str) -> String {
    format!("echo '{line}' | {}tee {file}", sudo())
}

fn sudo() -> &'static str {
    if geteuid().is_root() { "" } else { "sudo " }
}
