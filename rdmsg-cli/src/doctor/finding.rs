use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Finding {
    /// The subject of the check in a few words.
    pub(crate) subject: String,
    pub(crate) state: State,
    /// The host that was checked.
    pub(crate) host: Host,
    /// The result.
    pub(crate) what: String,
    /// The reason why the result matters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) why: Option<String>,
    /// The commands that solve the problem on the checked host, in order.
    #[serde(default, rename = "mend", skip_serializing_if = "Vec::is_empty")]
    pub(crate) commands: Vec<String>,
    /// The commands that make the solution permanent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) keep: Vec<String>,
    /// A remedy that is not a command, or a caution about the commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hint: Option<String>,
}

/// The severity of a finding. Later variants are more severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// No problem was found.
    Ok,
    /// A fact that is useful to know.
    Note,
    /// The checked transport works, but with a known weakness.
    Warning,
    /// The checked transport does not work.
    Error,
}

/// One of the two examined hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Host {
    /// The host that runs the doctor.
    Here,
    /// The peer on the command line.
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
            commands: Vec::new(),
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

    pub(crate) fn command(mut self, command: impl Into<String>) -> Self {
        self.commands.push(command.into());
        self
    }

    pub(crate) fn commands(mut self, commands: impl IntoIterator<Item = String>) -> Self {
        self.commands.extend(commands);
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

/// Returns the command with `sudo` in front, unless this process runs as root.
pub(crate) fn as_root(command: &str) -> String {
    format!("{}{command}", sudo())
}

/// Returns a command that writes this line, as the only content, to a file owned by root.
pub(crate) fn write_line(line: &str, file: &str) -> String {
    format!("echo '{line}' | {}tee {file}", sudo())
}

fn sudo() -> &'static str {
    if geteuid().is_root() { "" } else { "sudo " }
}

/// Returns a number and its noun, in the singular for 1.
pub(super) fn counted(number: usize, noun: &str) -> String {
    match number {
        1 => format!("1 {noun}"),
        _ => format!("{number} {noun}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_counted_in_the_singular() {
        let texts = [0, 1, 2].map(|number| counted(number, "problem"));
        assert_eq!(texts, ["0 problems", "1 problem", "2 problems"]);
    }
}
