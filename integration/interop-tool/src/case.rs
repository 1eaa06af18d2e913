use std::{env, fmt};

use anyhow::{Context, Result};
use toolbox::{Lab, Listening};

/// A server, one or more clients of it, and how all of them are to end.
#[derive(Debug)]
pub(crate) struct Case {
    /// The program, as it is called in the table.
    pub(crate) program: &'static str,
    /// What is special about this case.
    pub(crate) what: String,
    pub(crate) server: Side,
    pub(crate) clients: Vec<Side>,
    /// Whether the clients come all at once; otherwise one after the other.
    pub(crate) at_once: bool,
    /// What shows that the server may be connected to; `None` where nobody does.
    pub(crate) ready: Option<Listening>,
    /// Whether it belongs to the quick ones.
    pub(crate) quick: bool,
    /// How long each side may take on an idle machine.
    pub(crate) seconds: u64,
}

/// One program that runs.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) who: Who,
    /// The program, and its options with `{server}`, `{server6}`, `{client}` and `{client6}` for
    /// addresses.
    pub(crate) argv: Vec<String>,
    /// What stands in its environment: a variable, `=`, and its value.
    pub(crate) variable: Option<&'static str>,
    pub(crate) ends: Ends,
    /// On what it is killed, if that is not when the other side has ended.
    pub(crate) killed_on: Option<Cue>,
    /// What it must print, to either of its outputs.
    pub(crate) says: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    C,
    Rust,
}

/// How a program is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// By itself, with status 0.
    Well,
    /// By itself, with another status.
    Badly,
    /// By itself, however.
    Somehow,
    /// Not before it is told to.
    WhenKilled,
}

/// A sign to kill one side.
#[derive(Clone, Debug)]
pub(crate) enum Cue {
    /// It has printed this.
    OfItself(&'static str),
    /// The other side has.
    OfTheOther(&'static str),
}

impl Side {
    /// A program with options that are divided by blanks, which is to end well.
    pub(crate) fn new(who: Who, program: &str, options: &str) -> Self {
        let argv = [program].into_iter().chain(options.split_whitespace());
        Self {
            who,
            argv: argv.map(str::to_owned).collect(),
            variable: None,
            ends: Ends::Well,
            killed_on: None,
            says: Vec::new(),
        }
    }

    pub(crate) fn ends(self, ends: Ends) -> Self {
        Self { ends, ..self }
    }

    /// With this in its environment: a variable, `=`, and its value.
    pub(crate) fn with(self, variable: &'static str) -> Self {
        Self {
            variable: Some(variable),
            ..self
        }
    }

    /// It is killed on this sign.
    pub(crate) fn killed_on(self, cue: Cue) -> Self {
        Self {
            ends: Ends::WhenKilled,
            killed_on: Some(cue),
            ..self
        }
    }

    pub(crate) fn says(mut self, what: impl Into<String>) -> Self {
        self.says.push(what.into());
        self
    }
}

impl Case {
    pub(crate) fn new(
        program: &'static str,
        what: impl Into<String>,
        ready: impl Into<Option<Listening>>,
        server: Side,
        client: Side,
    ) -> Self {
        Self {
            program,
            what: what.into(),
            server,
            clients: vec![client],
            at_once: false,
            ready: ready.into(),
            quick: false,
            seconds: 120,
        }
    }

    /// So many clients of the same kind, all at once.
    pub(crate) fn at_once(self, count: usize) -> Self {
        Self {
            clients: vec![self.clients[0].clone(); count],
            at_once: true,
            ..self
        }
    }

    pub(crate) fn quick(self) -> Self {
        Self {
            quick: true,
            ..self
        }
    }

    pub(crate) fn seconds(self, seconds: u64) -> Self {
        Self { seconds, ..self }
    }

    /// Who the clients are. They are all alike, or only the first is of interest.
    pub(crate) fn client(&self) -> Who {
        self.clients[0].who
    }

    pub(crate) fn title(&self) -> String {
        format!(
            "{} server, {} client, {}",
            self.server.who,
            self.client(),
            self.what
        )
    }
}

/// All pairs of a server and a client of which at least one is ours.
pub(crate) const PAIRS: [(Who, Who); 3] = [
    (Who::Rust, Who::Rust),
    (Who::Rust, Who::C),
    (Who::C, Who::Rust),
];

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::C => "C",
            Self::Rust => "Rust",
        })
    }
}

/// Where the programs run.
#[derive(Debug)]
pub(crate) struct Place {
    server: String,
    server6: String,
    client: String,
    client6: String,
    /// Where our programs are.
    programs: String,
}

impl Place {
    /// As seen from host a, which has the clients.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let programs = env::current_exe()?;
        let programs = programs.parent().context("this program is nowhere")?;
        Ok(Self {
            server: lab.peer.to_string(),
            server6: lab.peer6.to_string(),
            client: lab.addr.to_string(),
            client6: lab.addr6.to_string(),
            programs: programs.display().to_string(),
        })
    }

    /// The command line of a side, with addresses, and with the path of the program where it is
    /// ours.
    pub(crate) fn argv(&self, side: &Side) -> Vec<String> {
        let mut argv: Vec<String> = side
            .argv
            .iter()
            .map(|arg| {
                arg.replace("{server}", &self.server)
                    .replace("{server6}", &self.server6)
                    .replace("{client}", &self.client)
                    .replace("{client6}", &self.client6)
                    .replace("{programs}", &self.programs)
            })
            .collect();
        if side.who == Who::Rust {
            argv[0] = format!("{}/{}", self.programs, argv[0]);
        }
        if let Some(variable) = side.variable {
            argv.splice(0..0, ["env", variable].map(str::to_owned));
        }
        argv
    }
}
