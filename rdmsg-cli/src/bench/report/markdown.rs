use std::fmt::Write;

use serde_json::Value;

use crate::doctor::Hardware;

/// Returns the report as Markdown. `tables` is the text of the result tables. All other data come
/// from `content`.
pub(super) fn of(content: &Value, tables: &str) -> String {
    let mut out = String::from("# Report of rdmsg bench\n");
    for (host, title) in [("here", "This host"), ("peer", "Peer")] {
        about(&mut out, title, &content[host]);
    }
    let settings = &content["settings"];
    push(
        &mut out,
        format_args!("\n## Settings\n\n```json\n{settings:#}\n```"),
    );
    push(&mut out, format_args!("\n## Results"));
    if content["is_complete"] != true {
        push(
            &mut out,
            format_args!("\nIncomplete: not all points of the plan were measured."),
        );
    }
    push(&mut out, format_args!("\n```text\n{}\n```", tables.trim()));
    let points = content["points"].as_array().into_iter().flatten();
    for point in points.filter(|point| point["error"].is_string()) {
        let (test, size, error) = (&point["test"], &point["size"], &point["error"]);
        let (test, error) = (cell(test), cell(error));
        push(
            &mut out,
            format_args!("\n* {test} of {size} bytes: {error}"),
        );
    }
    push(
        &mut out,
        format_args!("\nperftest: {}", cell(&content["perftest"])),
    );
    push(&mut out, format_args!("\n## Findings of rdmsg doctor\n"));
    let columns = ["host", "state", "subject", "what"];
    let findings = content["findings"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    table(&mut out, &columns, findings);
    out
}

fn about(out: &mut String, title: &str, host: &Value) {
    push(out, format_args!("\n## {title}\n"));
    if host.is_null() {
        push(
            out,
            format_args!("This host was not examined: the findings below state the reason."),
        );
        return;
    }
    let (version, kernel) = (cell(&host["rdmsg"]), cell(&host["kernel"]));
    push(out, format_args!("rdmsg {version}, kernel {kernel}\n"));
    let devices = host["devices"].as_array().map_or(&[][..], Vec::as_slice);
    if devices.is_empty() {
        push(out, format_args!("No RDMA device."));
    } else {
        table(out, &Hardware::COLUMNS, devices);
    }
}

fn table(out: &mut String, columns: &[&str], rows: &[Value]) {
    push(out, format_args!("| {} |", columns.join(" | ")));
    push(out, format_args!("|{}", "---|".repeat(columns.len())));
    for row in rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(&row[*column])).collect();
        push(out, format_args!("| {} |", cells.join(" | ")));
    }
}

/// Returns a value as one line of text. Replaces control characters with spaces, and escapes the
/// characters that Markdown would interpret.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => "–".into(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut cell = String::new();
    for c in text.chars() {
        match c {
            c if c.is_control() => cell.push(' '),
            '|' | '<' | '>' | '*' | '[' | ']' | '`' | '\\' => cell.extend(['\\', c]),
            c => cell.push(c),
        }
    }
    cell
}

fn push(out: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a `String` does not fail.
    let _ = writeln!(out, "{line}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn markdown_has_devices_settings_tables_and_findings() {
        let content = json!({
            "here": {
                "rdmsg": "0.1.0",
                "kernel": "6.1.0",
                "devices": [{"device": "mlx5_0", "firmware": "20.31.1014", "mtu": null}],
            },
            "peer": null,
            "settings": {"seconds": 1.0},
            "findings": [{"host": "here", "state": "ok", "subject": "port", "what": "a | b\nc"}],
            "is_complete": false,
            "points": [{"test": "rate", "size": 64, "error": "refused"}],
            "perftest": "not run",
        });
        let text = of(&content, "\nrate: one way\n  64\n");
        for part in [
            "| firmware | board | rate | mtu |",
            "\n| mlx5_0 | – | – | – | – | 20.31.1014 | – |",
            "## Peer\n\nThis host was not examined",
            "  \"seconds\": 1.0\n",
            "Incomplete",
            "```text\nrate: one way\n  64\n```\n",
            "* rate of 64 bytes: refused\n",
            "| here | ok | port | a \\| b c |\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
