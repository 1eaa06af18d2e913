//! Help texts and errors of the command line, with headings in bold.

use std::io::Write;

use anstyle::{AnsiColor, Style};
use clap::error::Error;

use crate::terminal;

/// Prints a help text to stdout or an error to stderr, and exits.
pub(crate) fn exit(error: &Error) -> ! {
    let text = with_headings(&error.render().to_string());
    // Ignore a write error: the output may be a pipe whose reader has exited.
    let _ = match error.use_stderr() {
        true => terminal::stderr().write_all(text.as_bytes()),
        false => terminal::stdout().write_all(text.as_bytes()),
    };
    std::process::exit(error.exit_code())
}

/// Adds styles to headings and to names of options and commands.
///
/// A heading is not indented. It is `error:`, `Usage:`, or a line of one or two words and a colon.
/// A name is indented. It ends before two spaces or, if the line has only an option, at the end of
/// the line.
fn with_headings(text: &str) -> String {
    let is_name = |head: &str| head.split(' ').count() <= 2;
    let lines = text.split_inclusive('\n').map(|line| {
        let content = line.trim_start_matches(' ');
        let (indentation, _) = line.split_at(line.len() - content.len());
        let is_heading = indentation.is_empty();
        let (style, len) = match content.split_once(':') {
            Some((head @ "error", _)) if is_heading => {
                (AnsiColor::Red.on_default().bold(), head.len() + 1)
            }
            Some((head, rest))
                if is_heading && (head == "Usage" || is_name(head) && rest == "\n") =>
            {
                (Style::new().bold().underline(), head.len() + 1)
            }
            _ if is_heading => return line.to_owned(),
            _ => match content.find("  ") {
                Some(len) => (Style::new().bold(), len),
                None if content.starts_with('-') => (Style::new().bold(), content.trim_end().len()),
                None => return line.to_owned(),
            },
        };
        let (head, rest) = content.split_at(len);
        format!("{indentation}{style}{head}{style:#}{rest}")
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::{Cli, terminal::plain};

    #[test]
    fn headings_and_names_are_bold() {
        let mut command = Cli::command();
        let text = command.render_long_help().to_string();
        let styled = with_headings(&text);
        assert_eq!(plain(styled.as_bytes()), text);
        for part in [
            "\x1b[1m\x1b[4mUsage:\x1b[0m rdmsg",
            "  \x1b[1mdoctor\x1b[0m   ",
        ] {
            assert!(styled.contains(part), "{part:?}: {styled:?}");
        }
    }
}
