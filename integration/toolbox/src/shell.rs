use anyhow::{Context, Result, bail, ensure};

use crate::{Line, Process, TIME_LIMIT};

/// A shell that executes the command lines of a test as root.
///
/// The shell defines a function `sudo`, so that lines with `sudo` also run on machines without the
/// program sudo. PATH contains the folder with the programs of this checkout.
#[derive(Debug)]
pub struct Shell {
    process: Process,
    typed: u32,
}

impl Shell {
    /// Starts a shell.
    ///
    /// # Errors
    ///
    /// If the shell cannot be started.
    pub fn start() -> Result<Self> {
        let mut this = Self {
            process: Process::start_with_stdin(&["sh"])?,
            typed: 0,
        };
        let programs = crate::example("rdmsg");
        let programs = programs.parent().context("the path has no folder")?;
        for line in [
            "sudo() { \"$@\"; }".to_owned(),
            format!("PATH={}:$PATH", programs.display()),
        ] {
            this.run(&line)?;
        }
        Ok(this)
    }

    /// Runs a command line and waits until it ends. Returns its exit status and its stdout.
    ///
    /// # Errors
    ///
    /// If the shell ends, or prints nothing for [`TIME_LIMIT`], before the command line has ended.
    pub fn type_line(&mut self, line: &str) -> Result<(u8, String)> {
        self.typed += 1;
        let end = format!("typed-{}", self.typed);
        self.process.tell(line);
        self.process.tell(&format!("echo {end} $?"));
        let mut printed = String::new();
        loop {
            match self.process.line(TIME_LIMIT) {
                Some(Line::Out(text)) => {
                    if let Some(status) = text.strip_prefix(&format!("{end} ")) {
                        return Ok((status.parse()?, printed));
                    }
                    printed += &format!("{text}\n");
                }
                Some(Line::Err(text)) => eprintln!("{line}: {text}"),
                None => bail!(
                    "{line}: the shell ended or was silent for {TIME_LIMIT:?}; stdout: {printed:?}"
                ),
            }
        }
    }

    /// Runs a command line, which must succeed. Returns its stdout.
    ///
    /// # Errors
    ///
    /// If the exit status is not 0, or if [`type_line`](Self::type_line) fails.
    pub fn run(&mut self, line: &str) -> Result<String> {
        let (status, printed) = self.type_line(line)?;
        ensure!(status == 0, "{line}: exit status {status}: {printed}");
        Ok(printed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_a_status_and_what_it_printed() {
        let mut shell = Shell {
            process: Process::start_with_stdin(&["sh"]).unwrap(),
            typed: 0,
        };
        assert_eq!(
            shell.type_line("echo one; echo two").unwrap(),
            (0, "one\ntwo\n".into())
        );
        assert_eq!(shell.type_line("(exit 3)").unwrap(), (3, String::new()));
        shell.run("kept=here").unwrap();
        assert_eq!(shell.run("echo $kept").unwrap(), "here\n");
        assert!(shell.run("false").is_err());
    }
}
