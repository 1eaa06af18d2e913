use std::{
    fs::{self, File, OpenOptions},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, anyhow};

/// The two files of a report. Dropping this value removes both files, unless the report was
/// written.
#[derive(Debug)]
pub(super) struct Files {
    json: Created,
    markdown: Created,
}

#[derive(Debug)]
struct Created {
    path: PathBuf,
    file: File,
    is_written: bool,
}

impl Files {
    /// Creates `name.json` and `name.md`.
    ///
    /// # Errors
    ///
    /// Fails if one of the files exists or cannot be created. In this case, removes any file that
    /// it has created.
    pub(super) fn create(name: &Path) -> Result<Self> {
        let create = |extension: &str| {
            let mut path = name.as_os_str().to_owned();
            path.push(extension);
            Created::new(path.into())
        };
        Ok(Self {
            json: create(".json")?,
            markdown: create(".md")?,
        })
    }

    /// Writes the JSON and the Markdown text, and returns the paths of both files.
    pub(super) fn write(mut self, texts: [&str; 2]) -> Result<[PathBuf; 2]> {
        let mut files = [&mut self.json, &mut self.markdown];
        for (file, text) in files.iter_mut().zip(texts) {
            let written = file.file.write_all(text.as_bytes());
            written.with_context(|| format!("cannot write {}", file.path.display()))?;
        }
        for file in &mut files {
            file.is_written = true;
        }
        Ok(files.map(|file| file.path.clone()))
    }
}

impl Created {
    fn new(path: PathBuf) -> Result<Self> {
        let opened = OpenOptions::new().write(true).create_new(true).open(&path);
        let file = opened.map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => anyhow!(
                "{} exists: choose another name for the report, or remove the file",
                path.display()
            ),
            _ => anyhow!("cannot create {}: {error}", path.display()),
        })?;
        Ok(Self {
            path,
            file,
            is_written: false,
        })
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        if !self.is_written {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn existing_file_is_neither_overwritten_nor_removed() {
        let folder = env::temp_dir().join(format!("rdmsg-report-files-{}", process::id()));
        fs::create_dir(&folder).unwrap();
        let name = folder.join("v1.2");
        drop(Files::create(&name).unwrap());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        let written = Files::create(&name).unwrap().write(["{}", "# x"]).unwrap();
        assert_eq!(written, [folder.join("v1.2.json"), folder.join("v1.2.md")]);
        fs::remove_file(&written[0]).unwrap();
        let error = Files::create(&name).unwrap_err().to_string();
        assert!(error.contains("v1.2.md exists: choose another"), "{error}");
        assert_eq!(fs::read_to_string(&written[1]).unwrap(), "# x");
        assert!(!written[0].exists());
        fs::remove_dir_all(folder).unwrap();
    }
}
