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
    /// The program and its options. If there are environment variables, the program is `env`.
    pub(crate) argv: Vec<String>,
    pub(crate) ends: Ends,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// The program exits with status 0.
    Success,
    /// The program exits with a status other than 0.
    Failure,
    /// The program exits with any status.
    AnyStatus,
    /// The program runs until the test kills it on the given event. If there is no event, the test
    /// kills the program after the other side has ended.
    WhenKilled(Option<Cue>),
}

/// The event on which a side is killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cue {
    /// This side has printed the given text.
    PrintedByThisSide(String),
    /// The other side has printed the given text.
    PrintedByOtherSide(String),
}

/// The placeholders in command lines, and their values.
pub(crate) type Placeholders = [(&'static str, String)];

/// Returns the values of the placeholders on host a, on which the clients run.
pub(crate) fn placeholders(lab: &Lab) -> Result<[(&'static str, String); 5]> {
    let programs = env::current_exe()?;
    let programs = programs
        .parent()
        .context("the path of this program has no folder")?;
    Ok([
        ("{server}", lab.peer.to_string()),
        ("{server6}", lab.peer6.to_string()),
        ("{client}", lab.addr.to_string()),
        ("{client6}", lab.addr6.to_string()),
        ("{programs}", programs.display().to_string()),
    ])
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
pub(crate) fn all(placeholders: &Placeholders) -> Result<Vec<Case>> {
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
                let server = side(server, *who_serves, placeholders)?;
                let client = side(client, *who_asks, placeholders)?;
                cases.push(case(program, sign, what, server, client)?);
            }
        }
    }
    Ok(cases)
}

fn case(program: &str, sign: &str, title: &str, server: Side, client: Side) -> Result<Case> {
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
fn side(line: &str, each: Language, placeholders: &Placeholders) -> Result<Side> {
    let (head, rest) = line
        .trim_start()
        .split_once(": ")
        .context(line.to_owned())?;
    let (language, ends) = head.split_once(' ').unwrap_or((head, ""));
    let language = match language {
        "each" => each,
        "C" => Language::C,
        "Rust" => Language::Rust,
        _ => bail!("the line {line:?} does not begin with a language"),
    };
    let (rest, cue) = if let Some((rest, text)) = rest.split_once(" !own ") {
        (rest, Some(Cue::PrintedByThisSide(text.to_owned())))
    } else if let Some((rest, text)) = rest.split_once(" !other ") {
        (rest, Some(Cue::PrintedByOtherSide(text.to_owned())))
    } else {
        (rest, None)
    };
    let ends = match ends {
        "" => Ends::Success,
        "badly" => Ends::Failure,
        "somehow" => Ends::AnyStatus,
        "killed" => Ends::WhenKilled(cue),
        _ => {
            bail!("the line {line:?} does not say how the program must end: unknown word {ends:?}")
        }
    };
    let mut parts = rest.split(" => ");
    let command = parts.next().unwrap_or_default();
    Ok(Side {
        language,
        argv: argv(command, language, placeholders),
        ends,
        says: parts
            .map(|text| text.replace("\\n", "\n").replace("\\t", "\t"))
            .collect(),
    })
}

/// Returns the command line of a side, with the placeholders replaced by their values. The Rust
/// programs are in the folder that contains this program.
fn argv(command: &str, language: Language, placeholders: &Placeholders) -> Vec<String> {
    let mut argv = words(command);
    let is_program = |word: &String| !word.contains('=');
    let program = argv.iter().position(is_program).unwrap_or(0);
    match (language, &*argv[program]) {
        (Language::Rust, _) => argv[program].insert_str(0, "{programs}/"),
        (Language::C, "rc_pingpong") => {
            argv.splice(
                ..=program,
                ["ibv_rc_pingpong", "-g", "1"].map(str::to_owned),
            );
        }
        (Language::C, "valkey-server") => drop(argv.splice(program..=program, words(VALKEY))),
        (Language::C, _) => {}
    }
    if program > 0 {
        argv.insert(0, "env".to_owned());
    }
    for (name, value) in placeholders {
        for word in &mut argv {
            *word = word.replace(name, value);
        }
    }
    argv
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_are_read_whole() {
        let cases = all(&[]).unwrap();
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
        assert_eq!(killed.clients[0].ends, Ends::WhenKilled(Some(cue)));
        assert_eq!(case("the names").clients[0].says, ["1 HCA found:\n\trxe0"]);
        let valkey = &case("512 MB, the longest value").server.argv;
        let server = "{programs}/../valkey/valkey-server";
        assert_eq!([&*valkey[0], &*valkey[10]], [server, ""]);
        assert_eq!(words("a \"\" \"b  c\" d"), ["a", "", "b  c", "d"]);
    }

    #[test]
    fn programs_are_called_with_addresses() {
        let values = [("{server}", "10.8.0.2"), ("{programs}", "/bin")];
        let values = values.map(|(name, value)| (name, value.to_owned()));
        let argv = |line| side(line, Language::Rust, &values).unwrap().argv;
        assert_eq!(
            argv("  each: rping -c -a {server}"),
            ["/bin/rping", "-c", "-a", "10.8.0.2"]
        );
        assert_eq!(
            argv("  C badly: LD_PRELOAD=x rstream => y"),
            ["env", "LD_PRELOAD=x", "rstream"]
        );
    }
}
