//! Takes the kernel proper out of a bzImage, so that an emulated processor need not decompress it.

use std::{
    io::Write,
    process::{Command, Stdio},
    thread,
};

/// Name "Xen", type 18: the note with the entry point at which QEMU starts an uncompressed kernel.
const ENTRY_NOTE: &[u8] = b"\x12\0\0\0Xen\0";

/// Compressions, by the bytes they begin with, and what undoes them.
const DECOMPRESSORS: [(&[u8], &[&str]); 2] = [
    (b"\xfd7zXZ\0", &["xz", "-dc", "--single-stream"]),
    (b"\x28\xb5\x2f\xfd", &["zstd", "-dcq"]),
];

/// `None` if this is not a bzImage, is compressed in another way, or cannot be started bare: then
/// it boots as it is, only slower.
pub(crate) fn extract(image: &[u8]) -> Option<Vec<u8>> {
    let payload = payload(image)?;
    let (_, command) = DECOMPRESSORS
        .iter()
        .find(|(magic, _)| payload.starts_with(magic))?;
    let kernel = pipe_through(command, payload)?;
    // Notes begin at words.
    let has_entry = || {
        (0..kernel.len())
            .step_by(4)
            .any(|at| kernel[at..].starts_with(ENTRY_NOTE))
    };
    let bootable = kernel.starts_with(b"\x7fELF") && has_entry();
    bootable.then_some(kernel)
}

/// The compressed kernel inside `image`, by the setup header of the x86 boot protocol.
fn payload(image: &[u8]) -> Option<&[u8]> {
    let word =
        |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?) as usize);
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let sectors = usize::from(*image.get(0x1f1)?);
    let start = (sectors + 1) * 512 + word(0x248)?;
    let len = word(0x24c)?;
    // The last four bytes are the size when decompressed, and would be garbage to a decompressor.
    image.get(start..(start + len).checked_sub(4)?)
}

fn pipe_through(command: &[&str], input: &[u8]) -> Option<Vec<u8>> {
    let mut child = Command::new(command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let mut stdin = child.stdin.take()?;
    thread::scope(|scope| {
        scope.spawn(move || stdin.write_all(input));
        let output = child.wait_with_output().ok()?;
        output.status.success().then_some(output.stdout)
    })
}
