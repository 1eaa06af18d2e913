use anyhow::{Context, Result};
use serde_json::Value;

use crate::Shell;

/// What `rdmsg doctor` found out.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Diagnosis {
    /// With what it ended.
    pub status: u8,
    /// All that it found, of both hosts.
    pub findings: Vec<Finding>,
}

/// One finding of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// What was looked at.
    pub subject: String,
    /// `ok`, `note`, `warning` or `error`.
    pub state: String,
    /// Whether it is about the other host.
    pub is_of_peer: bool,
    /// What was found.
    pub what: String,
    /// The commands that mend it, as they are printed.
    pub mend: Vec<String>,
}

impl Diagnosis {
    /// Types a line that runs `rdmsg doctor --json`, with more.
    ///
    /// # Errors
    ///
    /// When it prints something else.
    pub fn typed(shell: &mut Shell, line: &str) -> Result<Self> {
        let (status, printed) = shell.type_line(line)?;
        Self::parse(status, &printed).with_context(|| format!("{line}: {printed}"))
    }

    fn parse(status: u8, printed: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(printed)?;
        let lists = [&value["findings"], &value["peer"]["findings"]];
        let findings = lists.into_iter().filter_map(Value::as_array).flatten();
        let findings = findings.map(|finding| {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            Finding {
                subject: text(&finding["subject"]),
                state: text(&finding["state"]),
                is_of_peer: finding["host"] == "peer",
                what: text(&finding["what"]),
                mend: finding["mend"]
                    .as_array()
                    .map_or_else(Vec::new, |all| all.iter().map(text).collect()),
            }
        });
        Ok(Self {
            status,
            findings: findings.collect(),
        })
    }

    /// The errors, each with its subject.
    #[must_use]
    pub fn errors(&self) -> Vec<&Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.state == "error")
            .collect()
    }

    /// The only error, which is about this.
    ///
    /// # Panics
    ///
    /// When there are others, or none.
    #[must_use]
    #[track_caller]
    pub fn only_error(&self, subject: &str) -> &Finding {
        let errors = self.errors();
        let subjects: Vec<&str> = errors.iter().map(|finding| &*finding.subject).collect();
        assert_eq!(subjects, [subject], "{self:#?}");
        assert_eq!(self.status, 4);
        errors[0]
    }

    /// The states of what is about this.
    #[must_use]
    pub fn states(&self, subject: &str) -> Vec<&str> {
        let of_subject = self
            .findings
            .iter()
            .filter(|finding| finding.subject == subject);
        of_subject.map(|finding| &*finding.state).collect()
    }
}
