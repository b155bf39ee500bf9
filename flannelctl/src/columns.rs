//! Tables whose columns are as wide as their contents.

use types::printable;

use terminal::screen::{Screen, Style};

/// A cell, and its style if it has one.
pub(crate) type Cell = (String, Option<Style>);

/// A cell without a style.
pub(crate) fn plain(text: impl Into<String>) -> Cell {
    (text.into(), None)
}

/// Renders a table with a line of headings. A row may have one cell more than there are headings, for a note.
pub(crate) fn table(headings: &[&str], rows: &[Vec<Cell>], screen: Screen) -> String {
    let shown = |(column, (text, style)): (usize, &Cell)| {
        let text = match headings.get(column) {
            Some(_) => printable::value(text),
            None => printable::line(text),
        };
        (text.into_owned(), *style)
    };
    let rows: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| row.iter().enumerate().map(shown).collect())
        .collect();
    let longest = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|(text, _)| text.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..)
        .zip(headings)
        .map(|(column, name)| longest(column).max(name.chars().count()))
        .collect();
    let line = |cells: &[Cell]| {
        let mut out = String::new();
        let last = cells
            .iter()
            .rposition(|(text, _)| !text.is_empty())
            .map_or(0, |last| last + 1);
        for (column, (text, style)) in cells.iter().take(last).enumerate() {
            if column > 0 {
                out.push_str("  ");
            }
            let shown = style.map_or_else(|| text.clone(), |style| screen.styled(style, text));
            out.push_str(&shown);
            if column + 1 < last {
                let width = widths.get(column).copied().unwrap_or(0);
                out.push_str(&" ".repeat(width.saturating_sub(text.chars().count())));
            }
        }
        out
    };
    let heading: Vec<Cell> = headings
        .iter()
        .map(|name| ((*name).to_owned(), Some(Style::Strong)))
        .collect();
    std::iter::once(line(&heading))
        .chain(rows.iter().map(|row| line(row)))
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_contents() {
        let rows = [
            vec![plain("a"), plain(""), plain("1")],
            vec![plain("long\u{1b}"), plain("x"), plain(""), plain("a note")],
            vec![plain("b"), plain(""), plain("")],
        ];
        let text = table(&["NAME", "B", "COUNT"], &rows, Screen::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "NAME        B  COUNT");
        assert_eq!(lines[1], "a              1");
        assert_eq!(lines[2], "long\\u{1b}  x         a note");
        assert_eq!(lines[3], "b");
    }
}
