use anyhow::{Context, Result, bail, ensure};

use crate::{Line, Process, TIME_LIMIT};

/// A root shell that executes typed lines.
///
/// It has `sudo` on any machine, and finds the programs of this checkout by their names.
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
        let programs = programs.parent().context("a program in no folder")?;
        for line in [
            "sudo() { \"$@\"; }".to_owned(),
            format!("PATH={}:$PATH", programs.display()),
        ] {
            this.run(&line)?;
        }
        Ok(this)
    }

    /// Types a line and waits for its end. Returns its status and its stdout.
    ///
    /// # Errors
    ///
    /// If the line does not end in time.
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
                None => bail!("{line}: it does not end; it printed {printed:?}"),
            }
        }
    }

    /// Types a line that must succeed. Returns its stdout.
    ///
    /// # Errors
    ///
    /// If the line fails.
    pub fn run(&mut self, line: &str) -> Result<String> {
        let (status, printed) = self.type_line(line)?;
        ensure!(status == 0, "{line}: {status}: {printed}");
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
