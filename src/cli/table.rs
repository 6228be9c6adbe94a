//! Tables for people: columns as wide as what stands in them, nothing else.

use std::io::{self, Write};

/// Columns are this far apart.
const GAP: &str = "  ";

/// What a cell may take before it is cut: a reply's text would push everything off the screen.
const CELL_MAX_CHARS: usize = 60;

/// Writes a heading and rows. Control characters are shown as `?`, so that what a server said cannot steer a terminal.
///
/// # Errors
/// When it cannot be written.
pub(super) fn write(out: &mut impl Write, heading: &[&str], rows: &[Vec<String>]) -> io::Result<()> {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| cell_text(cell)).collect()).collect();
    let widths: Vec<usize> = heading
        .iter()
        .enumerate()
        .map(|(column, name)| {
            let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
            cells.chain([name.chars().count()]).max().unwrap_or_default()
        })
        .collect();
    line(out, heading.iter().copied(), &widths)?;
    rows.iter().try_for_each(|row| line(out, row.iter().map(String::as_str), &widths))
}

fn line<'c>(out: &mut impl Write, cells: impl Iterator<Item = &'c str>, widths: &[usize]) -> io::Result<()> {
    let padded: Vec<String> = cells.zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
    writeln!(out, "{}", padded.join(GAP).trim_end())
}

fn cell_text(text: &str) -> String {
    let shown: String = text.chars().map(|c| if c.is_control() { '?' } else { c }).take(CELL_MAX_CHARS + 1).collect();
    if shown.chars().count() <= CELL_MAX_CHARS {
        return shown;
    }
    shown.chars().take(CELL_MAX_CHARS - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_long_or_dangerous_cells_are_tamed() {
        let mut out = Vec::new();
        let rows = [vec!["a".to_owned(), "\u{1b}[2Jé".to_owned()], vec!["longer".to_owned(), "x".repeat(100)]];
        write(&mut out, &["id", "text"], &rows).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["id      text", "a       ?[2Jé"]);
        assert_eq!(lines[2], format!("longer  {}…", "x".repeat(59)));
    }
}
