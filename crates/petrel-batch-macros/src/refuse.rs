//! The constructs that a batched function must not contain, refused at the user's own token.

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, Block, Error, Expr, Ident, Macro, Pat, Path, Result, Stmt};

use crate::marks;

/// Checks the body of a batched function.
///
/// # Errors
/// All constructs that the macro refuses.
pub(crate) fn check(block: &Block, function: &Ident, is_method: bool, krate: &Path) -> Result<()> {
    let mut check = Check { function, is_method, krate, place: None, is_top: true, error: None };
    check.visit_block(block);
    check.error.map_or(Ok(()), Err)
}

struct Check<'a> {
    function: &'a Ident,
    is_method: bool,
    krate: &'a Path,
    /// The construct around, if no mark may stand in it.
    place: Option<&'static str>,
    /// Whether the block is the function's body.
    is_top: bool,
    error: Option<Error>,
}

impl Check<'_> {
    fn refuse(&mut self, place: impl Spanned, message: impl std::fmt::Display) {
        marks::note(&mut self.error, Error::new(place.span(), message));
    }

    fn within(&mut self, place: &'static str, visit: impl FnOnce(&mut Self)) {
        let around = self.place.replace(place);
        visit(self);
        self.place = around;
    }

    fn check_mark(&mut self, mac: &Macro) {
        if let Some(place) = self.place {
            let message = format!(
                "a mark cannot stand in {place}: put it into the body of the function itself"
            );
            self.refuse(&mac.path, message);
        }
        if let Err(error) = marks::fetches(mac, self.krate) {
            marks::note(&mut self.error, error);
        }
    }

    fn check_statement(&mut self, statement: &Stmt, has_marks: bool) {
        let attributes = match statement {
            Stmt::Local(local) => &local.attrs,
            Stmt::Macro(mac) => &mac.attrs,
            Stmt::Item(item) => {
                if has_marks && !self.is_top {
                    self.refuse(item, "an item in a block with a mark: move it to the function's own body or out of it");
                }
                return;
            }
            Stmt::Expr(expression, _) => attributes(expression),
        };
        if let Some(attribute) = attributes.first()
            && has_mark(|search| search.visit_stmt(statement))
        {
            self.refuse(
                attribute,
                "an attribute on a statement with a mark: put it on statements without marks",
            );
        }
    }

    /// Marks and jumps in a macro's arguments are out of this macro's sight: that macro may do anything with them.
    fn check_tokens(&mut self, tokens: TokenStream) {
        let mut before = None;
        for token in tokens {
            match &token {
                TokenTree::Group(group) => self.check_tokens(group.stream()),
                TokenTree::Ident(name) => {
                    let word = name.to_string();
                    if matches!(&*word, "return" | "break" | "continue" | "await") {
                        self.refuse(name, format!("`{word}` in the arguments of a macro: the batch cannot follow it; take it out of the macro"));
                    }
                }
                TokenTree::Punct(sign) if sign.as_char() == '?' => {
                    self.refuse(sign.span(), "`?` in the arguments of a macro: the batch cannot follow it; bind the value by `let` before");
                }
                TokenTree::Punct(sign) if sign.as_char() == '!' => {
                    if let Some(TokenTree::Ident(name)) = &before
                        && (*name == "prefetch" || *name == "switch")
                    {
                        self.refuse(name, "a mark cannot stand in the arguments of another macro: put it into the body of the function itself");
                    }
                }
                _ => {}
            }
            before = Some(token);
        }
    }
}

impl<'ast> Visit<'ast> for Check<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        let has_marks = has_mark(|search| search.visit_block(block));
        for statement in &block.stmts {
            self.check_statement(statement, has_marks);
        }
        let is_top = std::mem::replace(&mut self.is_top, false);
        for statement in &block.stmts {
            match marks::macro_of(statement) {
                Some(mac) => self.check_mark(mac),
                None => self.visit_stmt(statement),
            }
        }
        self.is_top = is_top;
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        self.visit_pat(&arm.pat);
        match &*arm.body {
            Expr::Macro(body) if marks::name_of(&body.mac).is_some() => self.check_mark(&body.mac),
            body => self.visit_expr(body),
        }
    }

    fn visit_pat(&mut self, pattern: &'ast Pat) {
        match pattern {
            Pat::Guard(guard) => {
                self.visit_pat(&guard.pat);
                self.within("the guard of an arm", |check| check.visit_expr(&guard.guard));
            }
            pattern => visit::visit_pat(self, pattern),
        }
    }

    fn visit_macro(&mut self, mac: &'ast Macro) {
        match marks::name_of(mac) {
            Some(name) => {
                let message = format!(
                    "`{name}!` is a statement: write it on a line of its own, before the access"
                );
                self.refuse(name, message);
            }
            None => self.check_tokens(mac.tokens.clone()),
        }
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Closure(closure) => {
                self.within("a closure", |check| visit::visit_expr_closure(check, closure));
            }
            Expr::Async(block) => {
                self.within("an async block", |check| visit::visit_expr_async(check, block));
            }
            Expr::Const(block) => {
                self.within("a constant", |check| visit::visit_expr_const(check, block));
            }
            Expr::Await(expression) if self.place != Some("an async block") => {
                self.refuse(expression.await_token, "`.await` in a batched function: a mark already lets other inputs run; wait outside of it");
            }
            Expr::Yield(expression) => {
                self.refuse(
                    expression.yield_token,
                    "`yield` in a batched function: `switch!()` lets other inputs run",
                );
            }
            Expr::TryBlock(block) => {
                self.refuse(
                    block.try_token,
                    "a `try` block in a batched function: use a function for it",
                );
            }
            Expr::Call(call) => {
                if let Expr::Path(function) = &*call.func
                    && !self.is_method
                    && function.path.is_ident(self.function)
                {
                    let message = format!(
                        "`{}` calls itself, by its plain form, which waits for memory: write a loop",
                        self.function
                    );
                    self.refuse(function, message);
                }
                visit::visit_expr_call(self, call);
            }
            expression => visit::visit_expr(self, expression),
        }
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        let is_batched =
            matches!(item, syn::Item::Fn(function) if function.attrs.iter().any(is_batched));
        if !is_batched {
            self.within("an item inside of the function", |check| visit::visit_item(check, item));
        }
    }
}

pub(crate) fn is_batched(attribute: &syn::Attribute) -> bool {
    attribute.path().segments.last().is_some_and(|segment| segment.ident == "batched")
}

fn has_mark(visit: impl FnOnce(&mut Search)) -> bool {
    let mut search = Search(false);
    visit(&mut search);
    search.0
}

/// Searches for marks as the user wrote them.
struct Search(bool);

impl<'ast> Visit<'ast> for Search {
    fn visit_macro(&mut self, mac: &'ast Macro) {
        self.0 |= marks::name_of(mac).is_some();
    }
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

fn attributes(expression: &Expr) -> &[syn::Attribute] {
    match expression {
        Expr::Block(expression) => &expression.attrs,
        Expr::ForLoop(expression) => &expression.attrs,
        Expr::If(expression) => &expression.attrs,
        Expr::Loop(expression) => &expression.attrs,
        Expr::Macro(expression) => &expression.attrs,
        Expr::Match(expression) => &expression.attrs,
        Expr::Unsafe(expression) => &expression.attrs,
        Expr::While(expression) => &expression.attrs,
        _ => &[],
    }
}
