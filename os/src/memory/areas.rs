//! The kernel's reports about memory areas, for tests.

use std::fs;

use super::Mapping;

/// Returns the entry for the memory area that contains `mapping`. The function reads the entry
/// from `file`, a file in /proc/self such as `smaps`, which has one entry for each memory area
/// of the process.
///
/// The first line of each entry starts with the address of the area.
pub(super) fn entry(file: &str, mapping: &Mapping) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/self/{file}")).ok()?;
    let mut found = None;
    for line in text.lines() {
        let word = line.split([' ', '-']).next().unwrap_or_default();
        match usize::from_str_radix(word, 16) {
            Ok(start) if start <= mapping.start().addr().get() => {
                found = Some(line.to_owned());
            }
            Ok(_) => break,
            Err(_) => {
                if let Some(entry) = &mut found {
                    entry.push('\n');
                    entry.push_str(line);
                }
            }
        }
    }
    found
}
