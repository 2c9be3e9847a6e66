//! What commands print: plain text for people, JSON for programs.

use std::io::Write;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cli::Format;

/// Prints `value` as JSON or as `plain` writes it. A reader that went away is no error.
pub fn print<T: Serialize>(
    format: Format,
    value: &T,
    plain: impl FnOnce(&mut String),
) -> Result<()> {
    let mut text = String::new();
    match format {
        Format::Json => text = serde_json::to_string(value)? + "\n",
        Format::Plain => plain(&mut text),
    }
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("cannot print"),
    }
}

/// Lines of columns, each as wide as its widest cell; the last is not padded.
pub fn table(out: &mut String, header: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = header.iter().map(|h| h.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: &mut dyn Iterator<Item = &str>| {
        let start = out.len();
        for (i, cell) in cells.enumerate() {
            if i > 0 {
                out.push_str("  ");
            }
            out.push_str(cell);
            let pad = widths[i].saturating_sub(cell.chars().count());
            out.extend(std::iter::repeat_n(' ', pad));
        }
        let end = start + out[start..].trim_end().len();
        out.truncate(end);
        out.push('\n');
    };
    line(&mut header.iter().copied());
    for row in rows {
        line(&mut row.iter().map(String::as_str));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_lines_end_where_the_text_does() {
        let mut out = String::new();
        let rows = vec![
            vec!["0".into(), "rbd/vm".into()],
            vec!["12".into(), "é".into()],
        ];
        table(&mut out, &["id", "image"], &rows);
        assert_eq!(out, "id  image\n0   rbd/vm\n12  é\n");
    }
}
