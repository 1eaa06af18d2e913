//! The cases, parsed from `cases.txt`.

use std::env;

use anyhow::{Context, Result, bail};
use toolbox::{Lab, Listening, sections};

/// A server with one or more clients, and how each of these programs must end.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    /// The name of the program, for the table of results.
    pub(crate) program: String,
    /// The description of the case, for the table of results.
    pub(crate) what: String,
    pub(crate) server: Side,
    pub(crate) clients: Vec<Side>,
    /// Whether all clients run concurrently. If not, they run one after another.
    pub(crate) concurrently: bool,
    /// The sign that shows that the server accepts connections. If `None`, the clients start
    /// immediately.
    pub(crate) ready: Option<Listening>,
    /// Whether the case also runs with `--quick`.
    pub(crate) quick: bool,
    /// The time limit for each side in seconds. `Deadline` extends it on a slow machine.
    pub(crate) seconds: u64,
}

/// One program of a case.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Side {
    pub(crate) language: Language,
    /// The environment variables, the program and its options, with placeholders for addresses and
    /// paths.
    pub(crate) argv: Vec<String>,
    pub(crate) ends: Ends,
    /// The event on which this side is killed. If this field is `None` and `ends` is `WhenKilled`,
    /// this side is killed after the other side has ended.
    pub(crate) killed_on: Option<Cue>,
    /// The texts that this side must print to stdout or stderr.
    pub(crate) says: Vec<String>,
}

/// The language of a program. The table of results contains the names of these variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    C,
    Rust,
}

/// How a program must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The program exits with status 0.
    Success,
    /// The program exits with a status other than 0.
    Failure,
    /// The program exits with any status.
    AnyStatus,
    /// The program runs until the test kills it.
    WhenKilled,
}

/// The event on which a side is killed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cue {
    /// This side has printed the given text.
    PrintedByThisSide(String),
    /// The other side has printed the given text.
    PrintedByOtherSide(String),
}

/// The pairs of languages that are tested: the language of the server, then that of the client. C
/// with C is not tested.
const PAIRS: [(Language, Language); 3] = [
    (Language::Rust, Language::Rust),
    (Language::Rust, Language::C),
    (Language::C, Language::Rust),
];

/// The command line of Valkey's server, which `integration/valkey` builds. The server stores no
/// files and does not listen on TCP.
const VALKEY: &str = "{programs}/../valkey/valkey-server --rdma-bind {server} --rdma-port 6379 \
                      --port 0 --protected-mode no --save \"\" --dir /tmp";

/// Returns all cases.
pub(crate) fn all() -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for (title, lines) in sections(include_str!("../cases.txt")) {
        let (program, sign) = title.split_once(", ").context(title)?;
        for lines in lines.chunks(3) {
            let &[what, server, client] = lines else {
                bail!("the case {lines:?} lacks the line of the server or of the client")
            };
            let pairs = match server.starts_with("  each") {
                true => &PAIRS[..],
                false => &PAIRS[..1],
            };
            for (who_serves, who_asks) in pairs {
                let sides = [side(server, *who_serves)?, side(client, *who_asks)?];
                cases.push(case(program, sign, what, sides)?);
            }
        }
    }
    Ok(cases)
}

fn case(program: &str, sign: &str, title: &str, [server, client]: [Side; 2]) -> Result<Case> {
    let mut words = title.split(" | ");
    let mut case = Case {
        program: program.to_owned(),
        what: words.next().unwrap_or_default().to_owned(),
        server,
        clients: vec![client],
        concurrently: false,
        ready: listening(sign)?,
        quick: false,
        seconds: 120,
    };
    for word in words {
        match word.split_once(' ') {
            None if word == "quick" => case.quick = true,
            None => case.ready = listening(word)?,
            Some((seconds, "s")) => case.seconds = seconds.parse()?,
            Some((count, how)) => {
                case.clients = vec![case.clients[0].clone(); count.parse()?];
                case.concurrently = how == "at once";
            }
        }
    }
    Ok(case)
}

fn listening(sign: &str) -> Result<Option<Listening>> {
    Ok(match sign.split_once(':') {
        Some(("cm", port)) => Some(Listening::Cm(port.parse()?)),
        Some(("tcp", port)) => Some(Listening::Tcp(port.parse()?)),
        None if sign == "datagrams" => Some(Listening::Datagrams),
        None if sign == "none" => None,
        _ => bail!("unknown sign {sign:?}"),
    })
}

/// Parses the line of a side. If the line begins with "each", the parameter `each` specifies the
/// language of the side.
fn side(line: &str, each: Language) -> Result<Side> {
    let (head, rest) = line
        .trim_start()
        .split_once(": ")
        .context(line.to_owned())?;
    let (language, ends) = head.split_once(' ').unwrap_or((head, ""));
    let cue = |sign, cue: fn(String) -> Cue| {
        let (rest, text) = rest.split_once(sign)?;
        Some((rest, Some(cue(text.to_owned()))))
    };
    let (rest, killed_on) = cue(" !own ", Cue::PrintedByThisSide)
        .or_else(|| cue(" !other ", Cue::PrintedByOtherSide))
        .unwrap_or((rest, None));
    let mut parts = rest.split(" => ");
    let mut argv = words(parts.next().unwrap_or_default());
    let language = match language {
        "each" => each,
        "C" => Language::C,
        "Rust" => Language::Rust,
        _ => bail!("the line {line:?} does not begin with a language"),
    };
    if language == Language::C && argv[0] == "rc_pingpong" {
        argv.splice(..1, ["ibv_rc_pingpong", "-g", "1"].map(str::to_owned));
    }
    if argv[0] == "valkey-server" {
        argv.splice(..1, words(VALKEY));
    }
    Ok(Side {
        language,
        argv,
        ends: match ends {
            "" => Ends::Success,
            "badly" => Ends::Failure,
            "somehow" => Ends::AnyStatus,
            "killed" => Ends::WhenKilled,
            _ => bail!(
                "the line {line:?} does not say how the program must end: unknown word {ends:?}"
            ),
        },
        killed_on,
        says: parts
            .map(|text| text.replace("\\n", "\n").replace("\\t", "\t"))
            .collect(),
    })
}

/// Splits a line into words. A word in quotation marks can be empty or contain spaces.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (index, part) in line.split('"').enumerate() {
        match index % 2 {
            0 => words.extend(part.split_whitespace().map(str::to_owned)),
            _ => words.push(part.to_owned()),
        }
    }
    words
}

/// The placeholders in command lines, and their values.
#[derive(Debug)]
pub(crate) struct Placeholders([(&'static str, String); 5]);

impl Placeholders {
    /// Returns the values for host a, on which the clients run.
    pub(crate) fn new(lab: &Lab) -> Result<Self> {
        let programs = env::current_exe()?;
        let programs = programs
            .parent()
            .context("the path of this program has no folder")?;
        Ok(Self([
            ("{server}", lab.peer.to_string()),
            ("{server6}", lab.peer6.to_string()),
            ("{client}", lab.addr.to_string()),
            ("{client6}", lab.addr6.to_string()),
            ("{programs}", programs.display().to_string()),
        ]))
    }

    /// Returns the command line of a side, with the placeholders replaced by their values. The Rust
    /// programs are in the folder that contains this program.
    pub(crate) fn argv(&self, side: &Side) -> Vec<String> {
        let mut argv = side.argv.clone();
        let program = argv
            .iter()
            .position(|word| !word.contains('='))
            .unwrap_or(0);
        if side.language == Language::Rust {
            argv[program].insert_str(0, "{programs}/");
        }
        if program > 0 {
            argv.insert(0, "env".to_owned());
        }
        for (name, value) in &self.0 {
            for word in &mut argv {
                *word = word.replace(name, value);
            }
        }
        argv
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_whole() {
        let cases = all().unwrap();
        assert_eq!(cases.len(), 311);
        let quick = cases.iter().filter(|case| case.quick);
        assert_eq!(quick.count(), 62);
        let case = |what: &str| cases.iter().find(|case| case.what == what).unwrap();
        let five = case("a persistent server, five clients in turn");
        assert_eq!((five.clients.len(), five.concurrently), (5, false));
        let ports = case("TCP port");
        assert_eq!(ports.ready, Some(Listening::Tcp(19000)));
        assert_eq!(case("as it comes: two connections").seconds, 300);
        let killed = case("a client that is killed when messages are to come");
        let cue = Cue::PrintedByThisSide("receiving data transfers".to_owned());
        assert_eq!(killed.clients[0].killed_on, Some(cue));
        assert_eq!(case("the names").clients[0].says, ["1 HCA found:\n\trxe0"]);
        let valkey = &case("512 MB, the longest value").server.argv;
        let server = "{programs}/../valkey/valkey-server";
        assert_eq!([&*valkey[0], &*valkey[10]], [server, ""]);
        assert_eq!(words("a \"\" \"b  c\" d"), ["a", "", "b  c", "d"]);
    }

    #[test]
    fn programs_are_called_with_addresses() {
        let values = [("{server}", "10.8.0.2"), ("{programs}", "/bin")];
        let values = values.into_iter().chain([("", ""); 3]);
        let values: Vec<_> = values
            .map(|(name, value)| (name, value.to_owned()))
            .collect();
        let placeholders = Placeholders(values.try_into().unwrap());
        let side = |line| side(line, Language::Rust).unwrap();
        let argv = placeholders.argv(&side("  each: rping -c -a {server}"));
        assert_eq!(argv, ["/bin/rping", "-c", "-a", "10.8.0.2"]);
        let argv = placeholders.argv(&side("  C badly: LD_PRELOAD=x rstream => y"));
        assert_eq!(argv, ["env", "LD_PRELOAD=x", "rstream"]);
    }
}
