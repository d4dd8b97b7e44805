//! Marks: `prefetch!(address)` and `switch!()`.
//!
//! Inside of the macro, a mark is a call `__petrel_mark(number, fetches…)`, in which the fetches are ordinary
//! expressions. Names and liveness are found in them as everywhere else.

use proc_macro2::Span;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Arm, Block, Error, Expr, ExprCall, Ident, LitInt, Macro, Path, Result, Stmt, Token, parse_quote,
};

const MARK: &str = "__petrel_mark";
/// The most marks of a function, marks of called functions included.
const MARKS_MAX: usize = 64;

/// The arguments of `prefetch!`.
struct Fetch {
    address: Expr,
    lines: Option<Expr>,
    writes: bool,
}

impl Parse for Fetch {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let mut fetch = Self { address: input.parse()?, lines: None, writes: false };
        while !input.is_empty() {
            input.parse::<Token![,]>()?;
            if input.is_empty() {
                break;
            }
            let unknown = "`prefetch!` takes an address, then `lines = number` or `write`; give a second address a mark of its own";
            let option: Ident = input.parse().map_err(|error| Error::new(error.span(), unknown))?;
            if option == "write" {
                fetch.writes = true;
            } else if option == "lines" && input.peek(Token![=]) {
                input.parse::<Token![=]>()?;
                fetch.lines = Some(input.parse()?);
            } else {
                return Err(Error::new(option.span(), unknown));
            }
        }
        Ok(fetch)
    }
}

impl Fetch {
    fn into_call(self, krate: &Path) -> Expr {
        let address = self.address;
        let lines = self.lines.unwrap_or_else(|| parse_quote!(1));
        match self.writes {
            false => parse_quote!(#krate::__private::fetch(#address, #lines)),
            true => parse_quote!(#krate::__private::fetch_write(#address, #lines)),
        }
    }
}

/// Returns the name of the mark that a macro is.
pub(crate) fn name_of(mac: &Macro) -> Option<&Ident> {
    let name = &mac.path.segments.last()?.ident;
    (name == "prefetch" || name == "switch").then_some(name)
}

/// Returns the macro of a statement that is a mark.
pub(crate) fn macro_of(statement: &Stmt) -> Option<&Macro> {
    let mac = match statement {
        Stmt::Macro(statement) => &statement.mac,
        Stmt::Expr(Expr::Macro(expression), _) => &expression.mac,
        _ => return None,
    };
    name_of(mac).is_some().then_some(mac)
}

/// Returns the fetches of a mark as calls.
pub(crate) fn fetches(mac: &Macro, krate: &Path) -> Result<Option<Expr>> {
    let name = name_of(mac).map(Ident::to_string);
    if name.as_deref() != Some("switch") {
        if mac.tokens.is_empty() {
            let message = "`prefetch!` needs an address: a reference or a pointer";
            return Err(Error::new(mac.path.span(), message));
        }
        return mac.parse_body::<Fetch>().map(|fetch| Some(fetch.into_call(krate)));
    }
    match mac.tokens.is_empty() {
        true => Ok(None),
        false => Err(Error::new_spanned(
            &mac.tokens,
            "`switch!()` has no argument: `prefetch!(address)` fetches memory",
        )),
    }
}

/// Turns marks into internal calls, or takes them out of a plain function. Consecutive marks become a single mark for the
/// memory of all.
pub(crate) struct Replace<'a> {
    pub(crate) krate: &'a Path,
    pub(crate) is_plain: bool,
    pub(crate) error: Option<Error>,
}

impl Replace<'_> {
    fn fetches(&mut self, mac: &Macro) -> Option<Expr> {
        fetches(mac, self.krate).unwrap_or_else(|error| {
            note(&mut self.error, error);
            None
        })
    }
}

impl VisitMut for Replace<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let mut stmts: Vec<Stmt> = Vec::new();
        for statement in block.stmts.drain(..) {
            let Some(mac) = macro_of(&statement) else {
                stmts.push(statement);
                continue;
            };
            let fetches = self.fetches(mac);
            if self.is_plain {
                // The address stays in a branch that never runs: the compiler then counts a local as used that only a mark
                // names.
                stmts.extend(fetches.map(|fetch| -> Stmt { parse_quote!(if false { #fetch; }) }));
                continue;
            }
            if let Some(Stmt::Expr(before, _)) = stmts.last_mut()
                && let Some(before) = mark_mut(before)
            {
                before.args.extend(fetches);
                continue;
            }
            let name = Ident::new(MARK, mac.path.span());
            stmts.push(parse_quote!(#name(0, #fetches);));
        }
        block.stmts = stmts;
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_arm_mut(&mut self, arm: &mut Arm) {
        if let Expr::Macro(body) = &*arm.body
            && name_of(&body.mac).is_some()
        {
            arm.body = parse_quote!({ #body; });
        }
        visit_mut::visit_arm_mut(self, arm);
    }

    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

/// Adds an error to those found before.
pub(crate) fn note(errors: &mut Option<Error>, error: Error) {
    match errors {
        Some(errors) => errors.combine(error),
        None => *errors = Some(error),
    }
}

fn is_mark(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Path(function) if function.path.is_ident(MARK))
}

fn mark_mut(expression: &mut Expr) -> Option<&mut ExprCall> {
    match expression {
        Expr::Call(call) if is_mark(call) => Some(call),
        _ => None,
    }
}

/// A mark: its number, and its fetches.
pub(crate) struct Mark<'a> {
    pub(crate) number: usize,
    pub(crate) fetches: Vec<&'a Expr>,
}

pub(crate) fn mark(expression: &Expr) -> Option<Mark<'_>> {
    let Expr::Call(call) = expression else { return None };
    if !is_mark(call) {
        return None;
    }
    let mut arguments = call.args.iter();
    let number = match arguments.next() {
        Some(Expr::Lit(number)) => match &number.lit {
            syn::Lit::Int(number) => number.base10_parse().ok()?,
            _ => return None,
        },
        _ => return None,
    };
    Some(Mark { number, fetches: arguments.collect() })
}

/// Numbers the marks of a body from 1 on, in the order of the text.
///
/// # Errors
/// If there are none, or too many.
pub(crate) fn number(block: &mut Block, function: &Ident) -> Result<usize> {
    struct Number(usize);
    impl VisitMut for Number {
        fn visit_expr_call_mut(&mut self, call: &mut ExprCall) {
            if is_mark(call) {
                self.0 += 1;
                let number = LitInt::new(&self.0.to_string(), Span::call_site());
                call.args[0] = parse_quote!(#number);
            }
            visit_mut::visit_expr_call_mut(self, call);
        }
        fn visit_item_mut(&mut self, _: &mut syn::Item) {}
    }
    let mut marks = Number(0);
    marks.visit_block_mut(block);
    match marks.0 {
        0 => Err(Error::new(
            function.span(),
            "a batched function needs a mark: write `prefetch!(address);` before the access that misses the cache, or remove `#[batched]`",
        )),
        count if count > MARKS_MAX => Err(Error::new(
            function.span(),
            format!(
                "{count} marks are more than {MARKS_MAX}: mark only accesses that miss the cache"
            ),
        )),
        count => Ok(count),
    }
}

/// Searches an expression or a block for marks.
struct Search {
    number: Option<usize>,
    is_in_loop: bool,
    found: Option<Span>,
    found_in_loop: bool,
}

impl<'ast> Visit<'ast> for Search {
    fn visit_expr(&mut self, expression: &'ast Expr) {
        if let Some(mark) = mark(expression)
            && self.number.is_none_or(|number| number == mark.number)
        {
            self.found.get_or_insert(expression.span());
            self.found_in_loop |= self.is_in_loop;
        }
        let outside = self.is_in_loop;
        self.is_in_loop |= matches!(expression, Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_));
        visit::visit_expr(self, expression);
        self.is_in_loop = outside;
    }
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

fn search(number: Option<usize>, visit: impl FnOnce(&mut Search)) -> Search {
    let mut search = Search { number, is_in_loop: false, found: None, found_in_loop: false };
    visit(&mut search);
    search
}

/// Returns whether an expression has a mark, or that with the number.
pub(crate) fn in_expr(expression: &Expr, number: Option<usize>) -> bool {
    search(number, |search| search.visit_expr(expression)).found.is_some()
}

/// Returns whether a block has a mark, or that with the number.
pub(crate) fn in_block(block: &Block, number: Option<usize>) -> bool {
    search(number, |search| search.visit_block(block)).found.is_some()
}

/// Returns whether a statement has a mark, or that with the number.
pub(crate) fn in_stmt(statement: &Stmt, number: Option<usize>) -> bool {
    search(number, |search| search.visit_stmt(statement)).found.is_some()
}

/// Returns whether any mark stands in a loop.
pub(crate) fn any_in_loop(block: &Block) -> bool {
    search(None, |search| search.visit_block(block)).found_in_loop
}

/// Returns the place of a mark in the user's text.
pub(crate) fn span(expression: &Expr, number: usize) -> Span {
    let found = search(Some(number), |search| search.visit_expr(expression)).found;
    found.unwrap_or_else(Span::call_site)
}
