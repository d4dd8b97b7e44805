//! A source file with all of its mutants, each behind a condition.

use std::ops::Range;

use super::points::{Point, Shape};

/// The function that says whether a mutant is chosen.
const IS: &str = "::petrel_planted::mutant::is";

/// A file with its mutants.
#[derive(Debug)]
pub(super) struct Rendered {
    pub(super) text: String,
    /// Where mutants are in it, inner ones behind those that they lie in.
    regions: Vec<Region>,
}

#[derive(Debug)]
struct Region {
    id: u32,
    /// What the mutant does.
    own: Range<usize>,
    /// The whole place, with its other mutants and with what it is without.
    whole: Range<usize>,
}

/// A place with the numbers of those of its mutants that compile.
pub(super) struct Numbered<'a> {
    pub(super) point: &'a Point,
    /// With the place in the list of variants.
    pub(super) ids: Vec<(u32, usize)>,
}

/// Writes a file with these mutants.
pub(super) fn render(source: &str, numbered: &[Numbered<'_>]) -> Rendered {
    let mut order: Vec<&Numbered<'_>> = numbered.iter().filter(|n| !n.ids.is_empty()).collect();
    // Outer places come before those in them. Of equal ones the first that was found is the outer.
    order.sort_by_key(|n| (n.point.range.start, std::cmp::Reverse(n.point.range.end)));
    let mut writer = Writer { source, out: String::new(), regions: Vec::new(), order, next: 0 };
    writer.write(0..source.len());
    Rendered { text: writer.out, regions: writer.regions }
}

struct Writer<'a> {
    source: &'a str,
    out: String,
    regions: Vec<Region>,
    order: Vec<&'a Numbered<'a>>,
    /// The next place to write.
    next: usize,
}

impl Writer<'_> {
    /// Writes a part of the source with the places in it.
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
    /// The mutants that are to blame for an error of the compiler's there: the mutant whose own text has it, or those of
    /// the innermost place around it; none if there is no such place.
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

    /// The mutants of all places that touch these bytes.
    pub(super) fn within(&self, range: &Range<usize>) -> Vec<u32> {
        let touches = |r: &&Region| r.whole.start < range.end && range.start < r.whole.end;
        self.regions.iter().filter(touches).map(|region| region.id).collect()
    }
}
