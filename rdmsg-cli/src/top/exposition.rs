use std::collections::BTreeMap;

/// A sample line of the Prometheus text format: `name{label="value",…} 12`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    pub(super) labels: BTreeMap<&'a str, String>,
    pub(super) value: f64,
}

/// Parses the sample lines of a text in the Prometheus format. Skips comments and malformed lines.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(line)
}

fn line(text: &str) -> Option<Line<'_>> {
    let (left, value) = text.rsplit_once(' ')?;
    let value: f64 = value.parse().ok()?;
    let Some((name, rest)) = left.split_once('{') else {
        let labels = BTreeMap::new();
        return Some(Line {
            name: left,
            labels,
            value,
        });
    };
    let mut labels = BTreeMap::new();
    let mut rest = rest.strip_suffix('}')?;
    while !rest.is_empty() {
        let (label, after) = rest.split_once("=\"")?;
        let (value, after) = unescape(after)?;
        labels.insert(label, value);
        rest = after.strip_prefix(',').unwrap_or(after);
    }
    Some(Line {
        name,
        labels,
        value,
    })
}

/// Parses the value of a label. Returns the value, and the text after the closing quotation mark.
fn unescape(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.chars();
    loop {
        value.push(match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => match chars.next()? {
                'n' => '\n',
                other => other,
            },
            other => other,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposition_lines_keep_labels_and_skip_others() {
        let text = "# TYPE a counter\na 1\nb{c=\"d e\",f=\"[::1]:1\"} 2.5\nnonsense\nx{y 1\n\n";
        let all: Vec<Line<'_>> = lines(text).collect();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].name, all[0].value), ("a", 1.0));
        assert_eq!(
            all[1].labels,
            BTreeMap::from([("c", "d e".to_owned()), ("f", "[::1]:1".to_owned())])
        );
    }

    #[test]
    fn escaped_label_is_read() {
        let text = "a{c=\"\\\"},\\\\\\n \",d=\"\"} 1\nb{c=\"no end\\\"} 1\n";
        let all: Vec<Line<'_>> = lines(text).collect();
        assert_eq!(all.len(), 1);
        assert_eq!(
            (&*all[0].labels["c"], &*all[0].labels["d"]),
            ("\"},\\\n ", "")
        );
    }

    #[test]
    fn the_librarys_own_text_is_read() {
        let text = rdmsg::observe::snapshot().to_prometheus();
        let mut all = lines(&text);
        assert!(all.any(|line| line.name == "rdmsg_connections"));
    }
}
