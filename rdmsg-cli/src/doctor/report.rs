use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::{
    examination::Examination,
    finding::{Finding, Host, State, counted},
    peer::PeerExamined,
};
use crate::terminal;

/// The widths of the state and subject columns, in characters.
const COLUMNS: [usize; 2] = [7, 20];

/// The findings about this host and, if a peer was given, about the path to the peer.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) here: Examination,
    pub(crate) there: Option<PeerExamined>,
}

impl Report {
    pub(super) fn new(here: Examination, there: Option<PeerExamined>) -> Self {
        Self { here, there }
    }

    /// Returns the findings about this host, followed by the findings about the path to the peer.
    pub(crate) fn findings(&self) -> impl Iterator<Item = &Finding> {
        let there = self.there.iter().flat_map(|there| &there.findings);
        self.here.findings.iter().chain(there)
    }

    pub(super) fn worst(&self) -> State {
        let states = self.findings().map(|finding| finding.state);
        states.max().unwrap_or(State::Ok)
    }

    fn count(&self, state: State) -> usize {
        self.findings()
            .filter(|finding| finding.state == state)
            .count()
    }

    pub(super) fn print_json(&self) -> io::Result<()> {
        #[derive(Serialize)]
        struct Json<'a> {
            #[serde(flatten)]
            here: &'a Examination,
            worst: State,
            peer: Option<Peer<'a>>,
        }
        #[derive(Serialize)]
        struct Peer<'a> {
            address: String,
            host: Option<&'a str>,
            findings: &'a [Finding],
        }
        let peer = self.there.as_ref().map(|there| Peer {
            address: there.address.to_string(),
            host: there.about.as_ref().map(|about| about.host.as_str()),
            findings: &there.findings,
        });
        let json = Json {
            here: &self.here,
            worst: self.worst(),
            peer,
        };
        let json = serde_json::to_string_pretty(&json)?;
        writeln!(io::stdout(), "{json}")
    }

    pub(super) fn print_text(&self, quiet: bool) -> io::Result<()> {
        let mut out = terminal::stdout();
        let width = terminal::width();
        let Examination { host, kernel, .. } = &self.here;
        writeln!(out, "host {host}, kernel {kernel}")?;
        write_findings(&mut out, &self.here.findings, quiet, width)?;
        if let Some(there) = &self.there {
            let name = there.about.as_ref();
            let name = name.map_or_else(String::new, |about| format!(" ({})", about.host));
            writeln!(out, "\nto {}{name}", there.address)?;
            write_findings(&mut out, &there.findings, quiet, width)?;
        }
        let (errors, warnings) = (self.count(State::Error), self.count(State::Warning));
        let (style, text) = match self.worst() {
            State::Ok | State::Note => (State::Ok.style(), "nothing is wrong".to_owned()),
            worst @ (State::Warning | State::Error) => (
                worst.style(),
                format!(
                    "{}, {}",
                    counted(errors, "error"),
                    counted(warnings, "warning")
                ),
            ),
        };
        writeln!(out, "\n{style}{text}{style:#}")
    }
}

fn write_findings(
    out: &mut impl Write,
    findings: &[Finding],
    quiet: bool,
    width: usize,
) -> io::Result<()> {
    let shown = |finding: &&Finding| !quiet || finding.state > State::Ok;
    for finding in findings.iter().filter(shown) {
        write_finding(out, finding, width)?;
    }
    Ok(())
}

fn write_finding(out: &mut impl Write, finding: &Finding, width: usize) -> io::Result<()> {
    let Finding {
        subject,
        state,
        host,
        what,
        why,
        commands,
        keep,
        hint,
    } = finding;
    let [first, second] = COLUMNS;
    let style = state.style();
    let indent = 2 + first + second;
    let mut lines = wrapped(what, width.saturating_sub(indent));
    let head = lines.next().unwrap_or_default();
    writeln!(
        out,
        "  {style}{:first$}{style:#}{subject:second$}{head}",
        state.name()
    )?;
    let margin = " ".repeat(indent);
    for line in lines {
        writeln!(out, "{margin}{line}")?;
    }
    let dim = Style::new().dimmed();
    let bold = Style::new().bold();
    let margin = " ".repeat(2 + first);
    let column = second;
    let suffix = match host {
        Host::Here => "",
        Host::Peer => " at the peer",
    };
    let mut text = |label: &str, text: &str| -> io::Result<()> {
        let mut label = label.to_owned();
        for line in wrapped(text, width.saturating_sub(indent)) {
            writeln!(out, "{margin}{dim}{label:column$}{line}{dim:#}")?;
            label.clear();
        }
        Ok(())
    };
    if let Some(why) = why {
        text("  why", why)?;
    }
    if let Some(hint) = hint {
        text("  know", hint)?;
    }
    for (label, commands) in [("  mend", commands), ("  keep", keep)] {
        let mut label = format!("{label}{suffix}");
        for command in commands {
            // Print the command on one line, so that the user can copy it.
            writeln!(
                out,
                "{margin}{dim}{label:column$}{dim:#}{bold}{command}{bold:#}"
            )?;
            label.clear();
        }
    }
    Ok(())
}

/// Wraps a text into lines of at most `width` characters. If `width` is less than 30, the limit is
/// 30. A word that is longer than the limit is not split, and has a line of its own.
fn wrapped(text: &str, width: usize) -> impl Iterator<Item = String> {
    let width = width.max(30);
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        lines.push(String::new());
        for word in line.split(' ') {
            let last = lines.last_mut().expect("the loop must have pushed a line");
            if !last.is_empty() && last.chars().count() + 1 + word.chars().count() > width {
                lines.push(word.to_owned());
            } else {
                last.push_str(if last.is_empty() { "" } else { " " });
                last.push_str(word);
            }
        }
    }
    lines.into_iter()
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warn",
            Self::Error => "ERROR",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Ok => AnsiColor::Green.on_default(),
            Self::Note => AnsiColor::Cyan.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default().bold(),
            Self::Error => AnsiColor::Red.on_default().bold(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::plain;

    #[test]
    fn commands_stand_in_one_piece_and_say_on_which_host() {
        let command = "a command that is longer than the terminal is wide ".repeat(3);
        let finding = Finding::error("firewall", "words ".repeat(30))
            .because("it is so")
            .command(&command)
            .at(Host::Peer);
        let mut out = Vec::new();
        write_finding(&mut out, &finding, 80).unwrap();
        let out = plain(&out);
        assert!(out.contains(&command), "{out}");
        assert!(out.contains("mend at the peer"), "{out}");
        let longest = out.lines().filter(|line| !line.contains(&command));
        assert!(longest.map(str::len).all(|length| length <= 80), "{out}");
    }
}
