//! Places of a source file that can be mutated, and their mutants.

use std::ops::Range;

use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprBinary, ExprRange, ExprRepeat, ImplItemFn, ItemConst,
    ItemFn, ItemImpl, ItemMod, ItemStatic, Lit, Pat, Path, PathArguments, RangeLimits, ReturnType,
    Signature, Stmt, TraitItemFn, Type, UnOp,
};

use super::files::{Source, leaves_out};

/// A place that can be mutated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Point {
    /// Bytes of the source file.
    pub(super) range: Range<usize>,
    pub(super) line: usize,
    pub(super) shape: Shape,
    pub(super) variants: Vec<Variant>,
}

/// The form of the mutants of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// An expression to replace.
    Expression,
    /// A condition to negate.
    Condition,
    /// A statement to remove.
    Statement,
    /// The beginning of a function, which then returns at once.
    Entry,
}

/// The change of one mutant at its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// The name in the report.
    pub(super) operator: String,
    /// The text that replaces the source.
    pub(super) text: String,
}

/// Returns all places of a file, except macros, constants, patterns, types, tests, and formatting for
/// human readers.
pub(super) fn of(source: &Source) -> Vec<Point> {
    let mut finder = Finder { text: &source.text, points: Vec::new() };
    finder.visit_file(&source.parsed);
    finder.points
}

struct Finder<'a> {
    text: &'a str,
    points: Vec<Point>,
}

/// Methods with a counterpart of the same type.
const COUNTERPARTS: [(&str, &str); 10] = [
    ("min", "max"),
    ("max", "min"),
    ("saturating_add", "saturating_sub"),
    ("saturating_sub", "saturating_add"),
    ("wrapping_add", "wrapping_sub"),
    ("wrapping_sub", "wrapping_add"),
    ("checked_add", "checked_sub"),
    ("checked_sub", "checked_add"),
    ("any", "all"),
    ("all", "any"),
];

/// Functions that only give hints to the processor or the scheduler: a program without the call has the
/// same result a little later.
const HINTS: [&str; 3] = ["yield_now", "spin_loop", "prefetch"];

/// Formatting for human readers, and the simulator's functions for breaking or inspecting a ring.
const FUNCTIONS_LEFT_OUT: [&str; 5] =
    ["fmt", "misbehave", "lie_about_head", "forge_header", "look_back"];

/// Methods that reserve memory.
const CAPACITIES: [&str; 3] = ["reserve", "reserve_exact", "shrink_to"];

impl Finder<'_> {
    fn text_of(&self, spanned: &impl Spanned) -> &str {
        &self.text[spanned.span().byte_range()]
    }

    /// Returns true if the code contains a planted defect, which is no part of the product.
    fn is_planted(&self, spanned: &impl Spanned) -> bool {
        self.text_of(spanned).contains("planted(")
    }

    fn add(&mut self, at: &impl Spanned, shape: Shape, variants: Vec<(String, String)>) {
        if variants.is_empty() || self.is_planted(at) {
            return;
        }
        let (range, line) = (at.span().byte_range(), at.span().start().line);
        let variants = variants.into_iter().map(|(operator, text)| Variant { operator, text });
        self.points.push(Point { range, line, shape, variants: variants.collect() });
    }

    /// Adds an expression with its replacements.
    fn swap(&mut self, at: &impl Spanned, variants: Vec<(String, String)>) {
        self.add(at, Shape::Expression, variants);
    }

    fn binary(&mut self, expr: &ExprBinary) {
        let (left, right) = (self.text_of(&expr.left), self.text_of(&expr.right));
        let op = self.text_of(&expr.op).to_owned();
        let with =
            |other: &&str| (format!("{op} -> {other}"), format!("({left}) {other} ({right})"));
        let mut variants: Vec<_> = others(&expr.op).iter().map(with).collect();
        if matches!(expr.op, BinOp::And(_) | BinOp::Or(_)) {
            if has_let(&expr.left) || has_let(&expr.right) {
                return;
            }
            variants.push((format!("without what follows {op}"), left.to_owned()));
            variants.push((format!("without what comes before {op}"), right.to_owned()));
        }
        self.swap(expr, variants);
    }

    fn literal(&mut self, expr: &Expr, literal: &Lit) {
        let text = self.text_of(literal).to_owned();
        let variants = match literal {
            Lit::Bool(value) => vec![format!("{}", !value.value)],
            Lit::Int(int) => {
                let suffix = int.suffix();
                let zero = if int.base10_digits() == "0" { "1" } else { "0" };
                let more = format!("({text} + 1)");
                match int.base10_digits() {
                    "0" | "1" => vec![format!("{zero}{suffix}")],
                    _ => vec![more, format!("{zero}{suffix}")],
                }
            }
            Lit::Float(_) => vec![format!("({text} * 2.0)")],
            _ => return,
        };
        self.swap(expr, variants.into_iter().map(|to| (format!("{text} -> {to}"), to)).collect());
    }

    /// Negates a condition without an operator that could be changed.
    fn condition(&mut self, cond: &Expr) {
        let is_plain = matches!(
            cond,
            Expr::Call(_) | Expr::MethodCall(_) | Expr::Path(_) | Expr::Field(_) | Expr::Macro(_)
        );
        if is_plain {
            let negated = vec![("negated".to_owned(), String::new())];
            self.add(cond, Shape::Condition, negated);
        }
    }

    /// Makes a function return at its beginning.
    fn entry(&mut self, signature: &Signature, block: &Block) {
        if block.stmts.is_empty() || signature.constness.is_some() {
            return;
        }
        let body = match &block.stmts[..] {
            [Stmt::Expr(only, None)] => self.text_of(only),
            _ => "",
        };
        let values = defaults(&signature.output);
        let values = values.into_iter().filter(|value| *value != body || value.is_empty());
        let ended = |value: &str| {
            let operator = format!("{}: returns {value} at once", signature.ident);
            (operator.replace("  ", " "), format!("return {value};"))
        };
        let variants: Vec<_> = values.map(ended).collect();
        if variants.is_empty() || self.is_planted(block) && block.stmts.len() == 1 {
            return;
        }
        let at = block.brace_token.span.open().byte_range().end;
        let line = signature.ident.span().start().line;
        let variants = variants.into_iter().map(|(operator, text)| Variant { operator, text });
        let variants = variants.collect();
        self.points.push(Point { range: at..at, line, shape: Shape::Entry, variants });
    }

    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        let is_out = signature.constness.is_some()
            || FUNCTIONS_LEFT_OUT.iter().any(|name| signature.ident == name);
        if !is_out && !attributes.iter().any(leaves_out) {
            self.entry(signature, block);
            self.visit_block(block);
        }
    }
}

/// Returns the possible replacements of an operator.
fn others(op: &BinOp) -> &'static [&'static str] {
    match op {
        BinOp::Add(_) => &["-"],
        BinOp::Sub(_) => &["+"],
        BinOp::Mul(_) => &["/"],
        BinOp::Div(_) | BinOp::Rem(_) => &["*"],
        BinOp::And(_) => &["||"],
        BinOp::Or(_) => &["&&"],
        BinOp::BitAnd(_) => &["|"],
        BinOp::BitOr(_) | BinOp::BitXor(_) => &["&"],
        BinOp::Shl(_) => &[">>"],
        BinOp::Shr(_) => &["<<"],
        BinOp::Eq(_) => &["!="],
        BinOp::Ne(_) => &["=="],
        BinOp::Lt(_) => &["<=", ">="],
        BinOp::Le(_) => &["<", ">"],
        BinOp::Ge(_) => &[">", "<"],
        BinOp::Gt(_) => &[">=", "<="],
        BinOp::AddAssign(_) => &["-="],
        BinOp::SubAssign(_) => &["+="],
        BinOp::MulAssign(_) => &["/="],
        BinOp::DivAssign(_) | BinOp::RemAssign(_) => &["*="],
        BinOp::BitAndAssign(_) => &["|="],
        BinOp::BitOrAssign(_) | BinOp::BitXorAssign(_) => &["&="],
        BinOp::ShlAssign(_) => &[">>="],
        BinOp::ShrAssign(_) => &["<<="],
        _ => &[],
    }
}

/// Returns true if a chain of conditions contains a `let` binding, and is therefore valid only in its
/// place.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(binary) => has_let(&binary.left) || has_let(&binary.right),
        _ => false,
    }
}

/// Returns values of a type that are most likely wrong.
fn defaults(output: &ReturnType) -> Vec<&'static str> {
    let ReturnType::Type(_, ty) = output else { return vec![""] };
    match &**ty {
        Type::Tuple(tuple) if tuple.elems.is_empty() => vec![""],
        Type::Path(path) => defaults_of(&path.path),
        _ => vec![],
    }
}

fn defaults_of(path: &Path) -> Vec<&'static str> {
    let Some(last) = path.segments.last() else { return vec![] };
    let is_unit = |arguments: &PathArguments| match arguments {
        PathArguments::AngleBracketed(list) => match list.args.first() {
            Some(syn::GenericArgument::Type(Type::Tuple(tuple))) => tuple.elems.is_empty(),
            _ => false,
        },
        _ => false,
    };
    match last.ident.to_string().as_str() {
        "bool" => vec!["true", "false"],
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => vec!["0", "1"],
        "i8" | "i16" | "i32" | "i64" | "isize" => vec!["0", "1"],
        "f32" | "f64" => vec!["0.0"],
        "Option" => vec!["None"],
        "Result" if is_unit(&last.arguments) => vec!["Ok(())"],
        "Vec" => vec!["Vec::new()"],
        "Duration" => vec!["std::time::Duration::ZERO"],
        _ => vec![],
    }
}

/// Returns true if a call has no visible effect in this build: a hint, or an event, which requires the
/// feature `tracing`.
fn is_without_effect(call: &syn::ExprCall) -> bool {
    let Expr::Path(function) = &*call.func else { return false };
    let segments = &function.path.segments;
    let is_hint = segments.last().is_some_and(|last| HINTS.iter().any(|hint| last.ident == hint));
    is_hint || segments.len() == 2 && segments[0].ident == "events"
}

/// Returns true if a statement can be removed, because only its effect matters.
fn is_effect(expr: &Expr) -> bool {
    match expr {
        Expr::Call(call) => !is_without_effect(call),
        Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => true,
        Expr::Try(tried) => is_effect(&tried.expr),
        Expr::Await(awaited) => is_effect(&awaited.base),
        Expr::Binary(binary) => is_assignment(&binary.op),
        _ => false,
    }
}

/// Returns true if the condition guards code of a planted defect alone, which is no part of the product.
fn is_defect(cond: &str) -> bool {
    cond.contains("planted(") && !cond.contains("!planted(")
}

fn is_assignment(op: &BinOp) -> bool {
    others(op).iter().any(|other| other.ends_with('=') && other.len() > 1)
        && !matches!(op, BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Lt(_) | BinOp::Gt(_))
        && !matches!(op, BinOp::Le(_) | BinOp::Ge(_))
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_item_const(&mut self, _: &'ast ItemConst) {}

    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}

    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}

    fn visit_item_static(&mut self, _: &'ast ItemStatic) {}

    fn visit_item_enum(&mut self, _: &'ast syn::ItemEnum) {}

    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}

    fn visit_pat(&mut self, _: &'ast Pat) {}

    fn visit_type(&mut self, _: &'ast Type) {}

    fn visit_path(&mut self, _: &'ast Path) {}

    fn visit_angle_bracketed_generic_arguments(
        &mut self,
        _: &'ast syn::AngleBracketedGenericArguments,
    ) {
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !module.attrs.iter().any(leaves_out) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let of = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let is_for_people = of.is_some_and(|last| {
            ["Debug", "Display", "Error"].iter().any(|name| last.ident == name)
        });
        if !is_for_people && !item.attrs.iter().any(leaves_out) {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard {
            if !has_let(guard) {
                let always = |value: &str| (format!("guard -> {value}"), value.to_owned());
                self.swap(guard, vec![always("true"), always("false")]);
            }
            self.visit_expr(guard);
            if is_defect(self.text_of(guard)) {
                return;
            }
        }
        self.visit_expr(&arm.body);
    }

    fn visit_expr_range(&mut self, range: &'ast ExprRange) {
        let step = match range.limits {
            RangeLimits::HalfOpen(_) => "+",
            RangeLimits::Closed(_) => "-",
        };
        if let Some(end) = range.end.as_deref()
            && !matches!(end, Expr::Lit(_))
        {
            let text = self.text_of(end).to_owned();
            let moved = (format!("end of a range {step} 1"), format!("({text}) {step} 1"));
            self.swap(end, vec![moved]);
        }
        visit::visit_expr_range(self, range);
    }

    fn visit_stmt(&mut self, stmt: &'ast Stmt) {
        if let Stmt::Expr(expr, Some(_)) = stmt
            && is_effect(expr)
        {
            let left_out = vec![("statement left out".to_owned(), String::new())];
            self.add(stmt, Shape::Statement, left_out);
        }
        visit::visit_stmt(self, stmt);
    }

    fn visit_expr(&mut self, expr: &'ast Expr) {
        match expr {
            Expr::Binary(binary) if is_defect(self.text_of(&binary.left)) => return,
            Expr::Binary(binary) => self.binary(binary),
            Expr::Lit(literal) => self.literal(expr, &literal.lit),
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) => {
                let op = self.text_of(&unary.op).to_owned();
                let inner = self.text_of(&unary.expr).to_owned();
                self.swap(expr, vec![(format!("without {op}"), inner)]);
            }
            Expr::MethodCall(call) => {
                let method = call.method.to_string();
                if let Some((_, other)) = COUNTERPARTS.iter().find(|(name, _)| *name == method) {
                    let (whole, name) = (call.span().byte_range(), call.method.span().byte_range());
                    let before = &self.text[whole.start..name.start];
                    let behind = &self.text[name.end..whole.end];
                    let text = format!("{before}{other}{behind}");
                    self.swap(expr, vec![(format!("{method} -> {other}"), text)]);
                }
            }
            Expr::If(branch) if branch.attrs.iter().any(leaves_out) => return,
            Expr::If(branch) => self.condition(&branch.cond),
            Expr::While(branch) => self.condition(&branch.cond),
            _ => {}
        }
        visit::visit_expr(self, expr);
    }

    fn visit_expr_if(&mut self, branch: &'ast syn::ExprIf) {
        self.visit_expr(&branch.cond);
        if !is_defect(self.text_of(&branch.cond)) {
            self.visit_block(&branch.then_branch);
        }
        if let Some((_, otherwise)) = &branch.else_branch {
            self.visit_expr(otherwise);
        }
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        self.visit_expr(&call.receiver);
        // The size of reserved memory has no effect that a test could see.
        if !CAPACITIES.iter().any(|name| call.method == name) {
            call.args.iter().for_each(|argument| self.visit_expr(argument));
        }
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        // Names of planted defects, unchecked assertions, reserved memory, and recorded events are no
        // places for mutants.
        let path = self.text_of(&call.func);
        let is_out = ["planted", "assert_unchecked", "with_capacity"];
        if !path.starts_with("events::") && !is_out.iter().any(|name| path.ends_with(name)) {
            let arguments: &Punctuated<Expr, _> = &call.args;
            self.visit_expr(&call.func);
            arguments.iter().for_each(|argument| self.visit_expr(argument));
        }
    }
}
