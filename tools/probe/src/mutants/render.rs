//! A source file with all of its mutants, under conditions.

use std::ops::Range;

use super::points::{Point, Shape};

/// The function that returns whether a mutant is chosen.
const IS: &str = "::petrel_planted::mutant::is";

/// A file with its mutants.
#[derive(Debug, Default)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// The places of mutants in the text; inner places come after the enclosing ones.
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    id: u32,
    /// The code of the mutant.
    own: Range<usize>,
    /// The whole place, with its other mutants and the original code.
    whole: Range<usize>,
}

/// A place with the numbers of its mutants that compile.
pub(super) struct Numbered<'a> {
    pub(super) point: &'a Point,
    /// The mutant's number, and its index in the list of variants.
    pub(super) ids: Vec<(u32, usize)>,
}

/// Renders a file with these mutants. Returns the line of the first place with a partial overlap, if
/// any.
pub(super) fn render(source: &str, numbered: &[Numbered<'_>]) -> Result<Rendered, usize> {
    let mut order: Vec<&Numbered<'_>> = numbered.iter().filter(|n| !n.ids.is_empty()).collect();
    // Enclosing places come before inner ones. Among places with equal ranges, the first encloses the
    // rest.
    order.sort_by_key(|n| (n.point.range.start, std::cmp::Reverse(n.point.range.end)));
    let mut writer = Writer { source, out: String::new(), regions: Vec::new(), order, next: 0 };
    writer.write(0..source.len());
    match writer.order.get(writer.next) {
        Some(unwritten) => Err(unwritten.point.line),
        None => Ok(Rendered { text: writer.out, regions: writer.regions }),
    }
}

struct Writer<'a> {
    source: &'a str,
    out: String,
    regions: Vec<Region>,
    order: Vec<&'a Numbered<'a>>,
    /// The index of the next place to write.
    next: usize,
}

impl Writer<'_> {
    /// Writes a part of the source with its places.
    fn write(&mut self, range: Range<usize>) {
        let mut at = range.start;
        while let Some(numbered) = self.order.get(self.next)
            && numbered.point.range.end <= range.end
            && numbered.point.range.start >= at
        {
            self.next += 1;
            let place = numbered.point.range.clone();
            self.out.push_str(&self.source[at..place.start]);
            self.write_place(self.order[self.next - 1]);
            at = place.end;
        }
        self.out.push_str(&self.source[at..range.end]);
    }

    fn write_place(&mut self, numbered: &Numbered<'_>) {
        let (point, begin, first) = (numbered.point, self.out.len(), self.regions.len());
        match point.shape {
            Shape::Expression => {
                self.out.push('(');
                for (id, variant) in &numbered.ids {
                    self.out.push_str(&format!("if {IS}({id}) {{ "));
                    self.write_own(*id, &point.variants[*variant].text);
                    self.out.push_str(" } else ");
                }
                self.out.push_str("{ ");
                self.write(point.range.clone());
                self.out.push_str(" })");
            }
            Shape::Condition => {
                for (id, _) in &numbered.ids {
                    self.write_own(*id, "");
                    self.out.push_str(&format!("({IS}({id}) != ("));
                }
                self.write(point.range.clone());
                self.out.push_str(&"))".repeat(numbered.ids.len()));
            }
            Shape::Statement => {
                for (id, _) in &numbered.ids {
                    self.write_own(*id, "");
                    self.out.push_str(&format!("if !{IS}({id}) {{ "));
                }
                self.write(point.range.clone());
                self.out.push_str(&" }".repeat(numbered.ids.len()));
            }
            Shape::Entry => {
                for (id, variant) in &numbered.ids {
                    self.out.push_str(&format!(" if {IS}({id}) {{ "));
                    self.write_own(*id, &point.variants[*variant].text);
                    self.out.push_str(" }");
                }
            }
        }
        let end = self.out.len();
        let own = numbered.ids.len();
        self.regions[first..]
            .iter_mut()
            .filter(|region| region.whole.is_empty())
            .take(own)
            .for_each(|region| region.whole = begin..end);
    }

    fn write_own(&mut self, id: u32, text: &str) {
        let begin = self.out.len();
        self.out.push_str(text);
        self.regions.push(Region { id, own: begin..self.out.len(), whole: 0..0 });
    }
}

impl Rendered {
    /// Returns the mutants that cause a compiler error at a place: the mutant with the error in its
    /// text, else the mutants of the innermost enclosing place, if any.
    pub(super) fn blamed(&self, error: &Range<usize>) -> Vec<u32> {
        let has = |range: &Range<usize>| range.start <= error.start && error.end <= range.end;
        if let Some(region) = self.regions.iter().find(|region| has(&region.own)) {
            return vec![region.id];
        }
        let around = self.regions.iter().filter(|region| has(&region.whole));
        let Some(least) = around.map(|region| region.whole.clone()).min_by_key(Range::len) else {
            return Vec::new();
        };
        self.regions.iter().filter(|r| r.whole == least).map(|region| region.id).collect()
    }

    /// Returns the mutants of all places that touch these bytes.
    pub(super) fn within(&self, range: &Range<usize>) -> Vec<u32> {
        let touches = |r: &&Region| r.whole.start < range.end && range.start < r.whole.end;
        self.regions.iter().filter(touches).map(|region| region.id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::files::Source;
    use super::super::points;
    use super::*;

    /// Returns the source with all mutants, written as `is(N)`, and their operators.
    fn mutated(text: &str) -> (String, Vec<String>) {
        let parsed = syn::parse_file(text).unwrap();
        let source = Source { path: "a.rs".into(), text: text.to_owned(), parsed };
        let points = points::of(&source);
        let (mut numbered, mut operators) = (Vec::new(), Vec::new());
        for point in &points {
            let first = operators.len() as u32;
            let ids = (first..).zip(0..point.variants.len()).collect();
            operators.extend(point.variants.iter().map(|variant| variant.operator.clone()));
            numbered.push(Numbered { point, ids });
        }
        let rendered = render(text, &numbered).unwrap();
        syn::parse_file(&rendered.text)
            .unwrap_or_else(|error| panic!("{error}: {}", rendered.text));
        (rendered.text.replace(IS, "is"), operators)
    }

    #[test]
    fn render__keeps_the_inner_mutants_in_the_branch_without_the_outer() {
        let (text, operators) = mutated("fn f() -> char { a(b + c < d) }");
        let inner = "(if is(2) { (b) - (c) } else { b + c })";
        let outer = "if is(0) { (b + c) <= (d) } else if is(1) { (b + c) >= (d) }";
        assert_eq!(text, format!("fn f() -> char {{ a(({outer} else {{ {inner} < d }})) }}"));
        assert_eq!(operators, ["< -> <=", "< -> >=", "+ -> -"]);
    }

    #[test]
    fn render__statements_conditions_and_beginnings() {
        let (text, _) = mutated("fn f(x: u8) { if g(x) { h(x); } }");
        let body = "if (is(1) != (g(x))) { if !is(2) { h(x); } }";
        assert_eq!(text, format!("fn f(x: u8) {{ if is(0) {{ return ; }} {body} }}"));
    }

    #[test]
    fn points__leave_alone_what_is_no_code_of_the_product() {
        for text in [
            "const A: u32 = 1 + 2;",
            "static A: [u8; 2 + 2] = [0; 1 + 3];",
            "const fn f() -> u32 { 1 + 2 }",
            "#[test] fn f() { assert!(1 + 1 == 2); a(1); }",
            "#[cfg(test)] mod tests { fn f() -> u32 { 1 } }",
            "impl fmt::Display for A { fn fmt(&self) -> fmt::Result { a(1 + 2) } }",
            "fn f() -> char { debug_assert_eq!(1 + 1, 2) }",
            "fn f() -> char { a::<2>(planted(\"b\")) }",
            "fn f() -> char { a.reserve(b + 1) }",
            "fn f() -> char { if planted(\"b\") { c = 1; } d }",
            "fn f() -> char { thread::yield_now(); hint::spin_loop(); prefetch(a); b }",
            "fn f() -> char { events::call_failed(a + 1); b }",
            "fn f() -> char { #[cfg(feature = \"a\")] if b { return c(1 + 2); } d }",
            "fn f(a: u8) -> char { match a { 1 => b, 2..=3 => c, _ => d } }",
        ] {
            assert_eq!(mutated(text), (text.to_owned(), Vec::<String>::new()));
        }
    }

    #[test]
    fn points__of_each_operator() {
        for (text, operators) in [
            (
                "{ a && b }",
                &["&& -> ||", "without what follows &&", "without what comes before &&"][..],
            ),
            ("{ !a }", &["without !"]),
            ("{ a.min(b) }", &["min -> max"]),
            (
                "{ b(true, 7, 0, 0.5) }",
                &["true -> false", "7 -> (7 + 1)", "7 -> 0", "0 -> 1", "0.5 -> (0.5 * 2.0)"],
            ),
            ("{ for x in a..b {} }", &["end of a range + 1"]),
            ("{ match a { b if c => d, _ => e } }", &["guard -> true", "guard -> false"]),
            ("{ a += b; c }", &["statement left out", "+= -> -="]),
            ("{ if a && let Some(b) = c { return d; } e }", &["statement left out"]),
        ] {
            let (_, found) = mutated(&format!("fn f() -> char {text}"));
            assert_eq!(found, operators, "{text}");
        }
        let (_, found) = mutated("fn f() -> bool { g() }");
        assert_eq!(found, ["f: returns true at once", "f: returns false at once"]);
    }

    #[test]
    fn render__tells_the_line_of_a_place_that_it_cannot_write() {
        let point = |range| Point {
            range,
            line: 3,
            shape: Shape::Condition,
            variants: vec![points::Variant { operator: String::new(), text: String::new() }],
        };
        let (one, across) = (point(0..4), point(2..6));
        let numbered = [&one, &across].map(|point| Numbered { point, ids: vec![(0, 0)] });
        assert_eq!(render("a + b + c", &numbered).unwrap_err(), 3);
    }

    #[test]
    fn blamed__the_mutant_or_else_those_of_the_innermost_place() {
        let text = "fn f() -> char { a(b + c < d) }";
        let parsed = syn::parse_file(text).unwrap();
        let source = Source { path: "a.rs".into(), text: text.to_owned(), parsed };
        let points = points::of(&source);
        let numbered = [
            Numbered { point: &points[0], ids: vec![(0, 0), (1, 1)] },
            Numbered { point: &points[1], ids: vec![(2, 0)] },
        ];
        let rendered = render(text, &numbered).unwrap();
        let at = |part: &str| {
            let start = rendered.text.find(part).unwrap();
            start..start + part.len()
        };
        assert_eq!(rendered.blamed(&at("(b + c) <= (d)")), [0]);
        assert_eq!(rendered.blamed(&at("(b) - (c)")), [2]);
        assert_eq!(rendered.blamed(&at("b + c })")), [2], "what stays, of the inner place");
        assert_eq!(rendered.blamed(&at("< d })")), [0, 1]);
        assert!(rendered.blamed(&at("fn f")).is_empty());
        assert_eq!(rendered.within(&(0..rendered.text.len())).len(), 3);
    }
}
