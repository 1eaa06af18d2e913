use std::{cell::RefCell, collections::BTreeSet};

use anyhow::{Result, ensure};
use toolbox::TestProgram;

use crate::steps::Track;

/// Selects tracks and test programs by name.
pub(crate) struct Only {
    /// The names of the selected tracks and test programs. If there are none, all short tracks are
    /// selected. The long tracks are then selected only if `all` is set.
    names: Vec<String>,
    /// Whether the long tracks are selected if `names` is empty.
    all: bool,
    /// All names passed to `selects` so far. The error about an unknown name lists them.
    known: RefCell<BTreeSet<String>>,
}

impl Only {
    pub(crate) fn new(names: &[String], all: bool) -> Self {
        Self {
            names: names.to_vec(),
            all,
            known: RefCell::default(),
        }
    }

    /// Records `name` as an existing name, for `check`. Returns true if `name` is selected, or if
    /// no names are selected.
    pub(crate) fn selects(&self, name: &str) -> bool {
        self.known.borrow_mut().insert(name.to_owned());
        self.names.is_empty() || self.names.iter().any(|selected| selected == name)
    }

    /// Returns the selected test programs of a track: all of them if the track itself is selected.
    pub(crate) fn of<'a>(
        &self,
        track: &str,
        tests: impl IntoIterator<Item = &'a TestProgram>,
    ) -> Vec<&'a TestProgram> {
        let whole_track = self.selects(track);
        let is_selected = |test: &&TestProgram| self.selects(&test.name) || whole_track;
        tests.into_iter().filter(is_selected).collect()
    }

    /// Returns cargo's options for the packages to build. The packages of the services are included
    /// only if the services are selected, because their dependencies take a fifth of the build
    /// time.
    pub(crate) fn packages(&self) -> &'static str {
        if self.all || self.names.iter().any(|name| name == "services") {
            "--workspace"
        } else {
            "--workspace --exclude services"
        }
    }

    /// Returns true if long tests can run: if `all` is set, or if names are selected.
    pub(crate) fn selects_long(&self) -> bool {
        self.all || !self.names.is_empty()
    }

    /// Returns the selected tracks, each with all of its steps.
    pub(crate) fn tracks(&self, tracks: Vec<Track>) -> Vec<Track> {
        let is_selected =
            |track: &Track| self.selects(track.name) && (self.selects_long() || !track.is_long);
        tracks.into_iter().filter(is_selected).collect()
    }

    /// Fails if a selected name does not exist.
    pub(crate) fn check(&self) -> Result<()> {
        let known = self.known.borrow();
        for name in &self.names {
            let all: Vec<_> = known.iter().map(String::as_str).collect();
            ensure!(
                known.contains(name),
                "no track or test program is named {name}; there are: {}",
                all.join(" ")
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::programs::named;

    #[test]
    fn long_track_runs_with_all_or_by_name() {
        let count = |names: &[&str], all| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            let mut long = Track::new("models", Vec::new());
            long.is_long = true;
            let tracks = vec![Track::new("builds", Vec::new()), long];
            Only::new(&names, all).tracks(tracks).len()
        };
        assert_eq!(count(&[], false), 1);
        assert_eq!(count(&[], true), 2);
        assert_eq!(count(&["models"], false), 1);
        assert_eq!(count(&["builds"], true), 1);
    }

    #[test]
    fn services_are_built_if_they_run() {
        let packages = |names: &[&str], all| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            Only::new(&names, all).packages()
        };
        assert_eq!(packages(&[], true), "--workspace");
        assert_eq!(packages(&["fds", "services"], false), "--workspace");
        for names in [&[][..], &["fds"]] {
            assert_eq!(packages(names, false), "--workspace --exclude services");
        }
    }

    #[test]
    fn a_track_and_a_program_are_chosen_by_name() {
        let all = [named("fds"), named("large")];
        let of = |only: &Only| only.of("rxe-1", &all).len();
        assert_eq!(of(&Only::new(&[], false)), 2);
        assert_eq!(of(&Only::new(&["rxe-1".to_owned()], false)), 2);
        let only = Only::new(&["large".to_owned()], false);
        assert_eq!(of(&only), 1);
        only.check().unwrap();
        let only = Only::new(&["larg".to_owned()], false);
        assert_eq!(of(&only), 0);
        let error = only.check().unwrap_err().to_string();
        assert!(error.ends_with("there are: fds large rxe-1"), "{error}");
    }
}
