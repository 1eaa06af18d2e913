use anyhow::{Context, Result};
use serde::{Deserialize, Deserializer};

use crate::Shell;

/// The command line of the doctor for [`Diagnosis::typed`]. A busy machine delays answers, so each
/// step has 50 s, which is longer than the default and shorter than [`crate::TIME_LIMIT`].
pub const DOCTOR: &str = "rdmsg doctor --json --timeout 50";

/// The result of running `rdmsg doctor`.
#[derive(Clone, Debug)]
pub struct Diagnosis {
    /// The exit status of the doctor.
    pub status: u8,
    /// All findings, about this host and about the peer's host.
    pub findings: Vec<Finding>,
}

/// The JSON that the doctor prints. The nested report about the peer's host contains only
/// `findings`.
#[derive(Deserialize)]
struct Report {
    findings: Vec<Finding>,
    peer: Option<Box<Self>>,
}

/// One finding of the report.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub struct Finding {
    /// The subject of the check, for instance `device` or `firewall`.
    pub subject: String,
    /// `ok`, `note`, `warning` or `error`.
    pub state: String,
    /// Whether the finding is about the peer's host.
    #[serde(rename = "host", deserialize_with = "is_peer")]
    pub is_of_peer: bool,
    /// The text of the finding.
    pub what: String,
    /// The commands that the doctor suggests to repair the cause.
    #[serde(default, rename = "mend")]
    pub commands: Vec<String>,
}

fn is_peer<'a, D: Deserializer<'a>>(host: D) -> Result<bool, D::Error> {
    Ok(String::deserialize(host)? == "peer")
}

impl Diagnosis {
    /// Runs a line in the shell. The line must run `rdmsg doctor --json`, possibly with more
    /// arguments.
    ///
    /// # Errors
    ///
    /// If the shell fails, or if the output is not a report of the doctor.
    pub fn typed(shell: &mut Shell, line: &str) -> Result<Self> {
        let (status, printed) = shell.type_line(line)?;
        let report = serde_json::from_str(&printed);
        let report: Report = report.with_context(|| format!("{line}: {printed}"))?;
        let mut findings = report.findings;
        findings.extend(report.peer.into_iter().flat_map(|peer| peer.findings));
        Ok(Self { status, findings })
    }

    /// Returns all findings whose state is `error`.
    pub fn errors(&self) -> Vec<&Finding> {
        let all = self.findings.iter();
        all.filter(|finding| finding.state == "error").collect()
    }

    /// Returns the only finding whose state is `error`.
    ///
    /// # Panics
    ///
    /// If there is not exactly one such finding, if its subject is not `subject`, or if the exit
    /// status of the doctor is not 4.
    #[track_caller]
    pub fn only_error(&self, subject: &str) -> &Finding {
        let [error] = self.errors()[..] else {
            panic!("the doctor must report one error: {self:#?}")
        };
        assert_eq!((&*error.subject, self.status), (subject, 4), "{self:#?}");
        error
    }

    /// Returns the states of all findings about `subject`.
    pub fn states(&self, subject: &str) -> Vec<&str> {
        let all = self.findings.iter();
        let of_subject = all.filter(|finding| finding.subject == subject);
        of_subject.map(|finding| &*finding.state).collect()
    }
}
