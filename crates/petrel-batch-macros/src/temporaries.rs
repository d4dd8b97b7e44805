//! Checks of unnamed values, which a mark could end early.
//!
//! A plain function drops a temporary at the end of the statement, and a temporary of a `match`, of a condition by `let` or of a `for` behind the
//! branch or the loop. A batch drops the temporary at the first mark of the branch or loop. The value therefore passes through a
//! function that refuses types with drop. The arguments of macros are out of sight.

use proc_macro2::Span;
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{Block, Expr, ExprCall, Pat, Path, Stmt, UnOp, parse_quote};

use crate::cut::is_lazy;
use crate::marks;

/// Wraps a value in a check with a place of the user's text.
pub(crate) fn checked(krate: &Path, place: Span, value: &mut Expr) {
    let krate = krate.to_token_stream().into_iter().map(|mut token| {
        token.set_span(token.span().located_at(place));
        token
    });
    let call = quote_spanned!(place=> #(#krate)*::__private::no_temporary(#value));
    *value = parse_quote!(#call);
}

/// Returns whether a pattern moves or copies all parts of a value.
pub(crate) fn is_whole(pattern: &Pat) -> bool {
    match pattern {
        Pat::Ident(name) => name.by_ref.is_none() && name.subpat.is_none(),
        Pat::Wild(_) | Pat::Rest(_) => false,
        Pat::Guard(guard) => is_whole(&guard.pat),
        Pat::Or(either) => either.cases.iter().all(is_whole),
        Pat::Paren(inner) => is_whole(&inner.pat),
        Pat::Reference(inner) => is_whole(&inner.pat),
        Pat::Type(typed) => is_whole(&typed.pat),
        Pat::Slice(parts) => parts.elems.iter().all(is_whole),
        Pat::Tuple(parts) => parts.elems.iter().all(is_whole),
        Pat::TupleStruct(parts) => parts.elems.iter().all(is_whole),
        Pat::Struct(parts) => {
            parts.rest.is_none() && parts.fields.iter().all(|field| is_whole(&field.pat))
        }
        _ => true,
    }
}

/// Returns the conditions by `let` of a condition.
pub(crate) fn lets(condition: &mut Expr) -> Vec<&mut syn::ExprLet> {
    match condition {
        Expr::Let(condition) => vec![condition],
        Expr::Paren(inner) => lets(&mut inner.expr),
        Expr::Binary(both) => {
            let mut all = lets(&mut both.left);
            all.extend(lets(&mut both.right));
            all
        }
        _ => Vec::new(),
    }
}

/// Checks unnamed values across marks.
pub(crate) struct Temporaries<'a> {
    pub(crate) krate: &'a Path,
}

impl Temporaries<'_> {
    /// Checks the value of an expression, unless the expression is a place or a reference.
    fn check(&self, value: &mut Expr) {
        match value {
            Expr::Path(_) | Expr::Field(_) | Expr::Index(_) | Expr::Reference(_) => {}
            Expr::Lit(_) | Expr::Cast(_) | Expr::Range(_) => {}
            Expr::Unary(outer) if matches!(outer.op, UnOp::Deref(_)) => {}
            Expr::Paren(outer) => self.check(&mut outer.expr),
            Expr::Group(outer) => self.check(&mut outer.expr),
            Expr::Tuple(outer) => outer.elems.iter_mut().for_each(|part| self.check(part)),
            Expr::Array(outer) => outer.elems.iter_mut().for_each(|part| self.check(part)),
            Expr::Call(call) if is_check(call) => {}
            value => checked(self.krate, value.span(), value),
        }
    }

    /// Checks the temporaries of a `let` that live to the end of the block.
    fn check_extended(&self, init: &mut Expr) {
        match init {
            Expr::Reference(outer) => self.check_base(&mut outer.expr),
            Expr::Paren(outer) => self.check_extended(&mut outer.expr),
            Expr::Group(outer) => self.check_extended(&mut outer.expr),
            Expr::Cast(outer) => self.check_extended(&mut outer.expr),
            Expr::Tuple(outer) => outer.elems.iter_mut().for_each(|it| self.check_extended(it)),
            Expr::Array(outer) => outer.elems.iter_mut().for_each(|it| self.check_extended(it)),
            Expr::Call(outer) => outer.args.iter_mut().for_each(|it| self.check_extended(it)),
            Expr::Struct(outer) => {
                outer.fields.iter_mut().for_each(|field| self.check_extended(&mut field.expr));
            }
            Expr::Block(outer) => {
                if let Some(Stmt::Expr(value, None)) = outer.block.stmts.last_mut() {
                    self.check_extended(value);
                }
            }
            _ => {}
        }
    }

    fn check_base(&self, place: &mut Expr) {
        match place {
            Expr::Paren(outer) => self.check_base(&mut outer.expr),
            Expr::Field(outer) => self.check_base(&mut outer.base),
            Expr::Index(outer) => self.check_base(&mut outer.expr),
            Expr::Unary(outer) => self.check_base(&mut outer.expr),
            Expr::Reference(outer) => self.check_base(&mut outer.expr),
            value => self.check(value),
        }
    }

    /// Checks the value behind a pattern, and the temporaries of the value's expression.
    fn check_matched(&self, value: &mut Expr, is_whole: bool) {
        if !is_whole {
            self.check(value);
        }
        Left(self).visit_expr_mut(value);
    }
}

fn is_check(call: &ExprCall) -> bool {
    matches!(&*call.func, Expr::Path(function)
        if function.path.segments.last().is_some_and(|name| name.ident == "no_temporary"))
}

/// Checks the temporaries that an expression leaves to the code around.
struct Left<'a, 'b>(&'a Temporaries<'b>);

impl VisitMut for Left<'_, '_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        // Scopes end their own temporaries.
        let is_scope = matches!(
            expression,
            Expr::Block(_)
                | Expr::Unsafe(_)
                | Expr::If(_)
                | Expr::Loop(_)
                | Expr::While(_)
                | Expr::ForLoop(_)
                | Expr::Closure(_)
                | Expr::Async(_)
                | Expr::Const(_)
        );
        if is_scope || is_lazy(expression) {
            return;
        }
        if let Expr::Match(choice) = expression {
            return self.visit_expr_mut(&mut choice.expr);
        }
        // The text of a value is whole before its parts have their checks.
        match expression {
            Expr::MethodCall(outer) => self.0.check(&mut outer.receiver),
            Expr::Field(outer) => self.0.check(&mut outer.base),
            Expr::Index(outer) => self.0.check(&mut outer.expr),
            Expr::Reference(outer) => self.0.check(&mut outer.expr),
            Expr::Unary(outer) if matches!(outer.op, UnOp::Deref(_)) => {
                self.0.check(&mut outer.expr)
            }
            _ => {}
        }
        visit_mut::visit_expr_mut(self, expression);
    }
}

impl VisitMut for Temporaries<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let mut has_mark = false;
        for statement in block.stmts.iter_mut().rev() {
            if let Stmt::Local(local) = statement
                && let Some(init) = &mut local.init
                && has_mark
            {
                self.check_extended(&mut init.expr);
                if has_reference(&local.pat) {
                    self.check_base(&mut init.expr);
                }
            }
            has_mark |= marks::in_stmt(statement, None);
        }
        visit_mut::visit_block_mut(self, block);
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        self.check_around_marks(expression);
        visit_mut::visit_expr_mut(self, expression);
    }

    fn visit_expr_closure_mut(&mut self, _: &mut syn::ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut syn::ExprAsync) {}
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

impl Temporaries<'_> {
    /// Checks the values that live as long as branches with marks or a loop with marks.
    fn check_around_marks(&self, expression: &mut Expr) {
        let (condition, block) = match expression {
            Expr::Match(choice) => {
                let mut marked =
                    choice.arms.iter().filter(|arm| marks::in_expr(&arm.body, None)).peekable();
                if marked.peek().is_some() {
                    let is_whole = marked.all(|arm| is_whole(&arm.pat));
                    self.check_matched(&mut choice.expr, is_whole);
                }
                return;
            }
            Expr::ForLoop(walk) if marks::in_block(&walk.body, None) => {
                return Left(self).visit_expr_mut(&mut walk.expr);
            }
            Expr::If(choice) => (&mut choice.cond, &choice.then_branch),
            Expr::While(repeat) => (&mut repeat.cond, &repeat.body),
            _ => return,
        };
        if marks::in_block(block, None) {
            for condition in lets(condition) {
                self.check_matched(&mut condition.expr, is_whole(&condition.pat));
            }
        }
    }
}

/// Returns whether a pattern binds a part by `ref`.
fn has_reference(pattern: &Pat) -> bool {
    struct Search(bool);
    impl<'ast> syn::visit::Visit<'ast> for Search {
        fn visit_pat_ident(&mut self, name: &'ast syn::PatIdent) {
            self.0 |= name.by_ref.is_some();
        }
    }
    let mut search = Search(false);
    syn::visit::Visit::visit_pat(&mut search, pattern);
    search.0
}
