//! A body in the form that can be cut at marks.
//!
//! `return` and `?` leave a labelled block, since a batch goes on with other lanes. Loops with marks get labels of
//! their own, and `for` loops with marks become `while let` loops, whose iterator is a local that a lane can keep.

use proc_macro2::Span;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Expr, ExprBreak, ExprForLoop, Ident, Label, Lifetime, Local, Pat, Path, Token, Type,
    parse_quote,
};

use crate::marks;

/// A label of generated code.
pub(crate) fn label(name: &str, span: Span) -> Lifetime {
    Lifetime::new(&format!("'__petrel_{name}"), span)
}

/// The compiler warns of a jump with both a label and a block.
fn in_parentheses(value: Box<Expr>) -> Box<Expr> {
    let is_block = matches!(
        *value,
        Expr::Block(_) | Expr::If(_) | Expr::Match(_) | Expr::Loop(_) | Expr::Unsafe(_)
    );
    if is_block { Box::new(parse_quote!((#value))) } else { value }
}

/// Replaces `return` and `?` of a function by jumps to the end of a block with the label.
pub(crate) struct Returns<'a> {
    pub(crate) label: Lifetime,
    pub(crate) result: Type,
    pub(crate) krate: &'a Path,
}

impl VisitMut for Returns<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        visit_mut::visit_expr_mut(self, expression);
        match expression {
            Expr::Return(leave) => {
                *expression = Expr::Break(ExprBreak {
                    attrs: Vec::new(),
                    break_token: Token![break](leave.return_token.span),
                    label: Some(self.label.clone()),
                    expr: leave.expr.take().map(in_parentheses),
                });
            }
            Expr::Try(question) => {
                let (value, label) = (&question.expr, &self.label);
                let (krate, result) = (self.krate, &self.result);
                let span = question.question_token.span();
                let branch = quote_spanned!(span=> #krate::__private::branch);
                let made = quote_spanned!(span=> <#result as #krate::__private::FromResidual<_>>::from_residual);
                *expression = parse_quote! {
                    match #branch(#value) {
                        ::core::ops::ControlFlow::Continue(__petrel_value) => __petrel_value,
                        ::core::ops::ControlFlow::Break(__petrel_residual) => break #label #made(__petrel_residual),
                    }
                };
            }
            _ => {}
        }
    }
    fn visit_expr_closure_mut(&mut self, _: &mut syn::ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut syn::ExprAsync) {}
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

/// The labels of the loops around a place.
struct Around {
    named: Option<Ident>,
    /// The label of generated code, if the loop has marks.
    label: Option<Lifetime>,
    is_loop: bool,
}

/// Gives loops with marks labels, and turns `for` loops with marks into `while` loops.
#[derive(Default)]
pub(crate) struct Loops {
    count: usize,
    around: Vec<Around>,
}

impl Loops {
    fn enter(&mut self, label: &mut Option<Label>, has_marks: bool, span: Span) {
        let named = label.as_ref().map(|label| label.name.ident.clone());
        let generated = has_marks.then(|| {
            self.count += 1;
            self::label(&format!("loop_{}", self.count), span)
        });
        if let Some(name) = &generated {
            *label = Some(parse_quote!(#name:));
        }
        self.around.push(Around { named, label: generated, is_loop: true });
    }

    /// Gives a jump the generated label of the loop that it names, or of the innermost loop.
    fn retarget(&self, label: &mut Option<Lifetime>) {
        let target = match label {
            Some(label) => {
                self.around.iter().rev().find(|around| around.named.as_ref() == Some(&label.ident))
            }
            None => self.around.iter().rev().find(|around| around.is_loop),
        };
        if let Some(generated) = target.and_then(|target| target.label.clone()) {
            *label = Some(generated);
        }
    }
}

impl VisitMut for Loops {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        if let Expr::ForLoop(walk) = expression
            && marks::in_block(&walk.body, None)
        {
            *expression = while_of(walk);
        }
        let has_marks = marks::in_expr(expression, None);
        let span = expression.span();
        let entered = match expression {
            Expr::Loop(repeat) => {
                self.enter(&mut repeat.label, has_marks, span);
                true
            }
            Expr::While(repeat) => {
                self.enter(&mut repeat.label, has_marks, span);
                true
            }
            Expr::ForLoop(repeat) => {
                self.visit_expr_mut(&mut repeat.expr);
                self.enter(&mut repeat.label, false, span);
                self.visit_block_mut(&mut repeat.body);
                self.around.pop();
                return;
            }
            Expr::Block(block) if block.label.is_some() => {
                let named = block.label.as_ref().map(|label| label.name.ident.clone());
                self.around.push(Around { named, label: None, is_loop: false });
                true
            }
            Expr::Break(leave) => {
                self.retarget(&mut leave.label);
                leave.expr = leave.expr.take().map(in_parentheses);
                false
            }
            Expr::Continue(next) => {
                self.retarget(&mut next.label);
                false
            }
            _ => false,
        };
        visit_mut::visit_expr_mut(self, expression);
        if entered {
            self.around.pop();
        }
    }
    fn visit_expr_closure_mut(&mut self, _: &mut syn::ExprClosure) {}
    fn visit_expr_async_mut(&mut self, _: &mut syn::ExprAsync) {}
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

fn while_of(walk: &ExprForLoop) -> Expr {
    let ExprForLoop { label, pat, expr, body, .. } = walk;
    let iterator = Ident::new("__petrel_iterator", expr.span());
    let begin = quote_spanned!(expr.span()=> ::core::iter::IntoIterator::into_iter);
    parse_quote! {{
        let mut #iterator = #begin(#expr);
        #label while let ::core::option::Option::Some(#pat) = ::core::iter::Iterator::next(&mut #iterator) #body
    }}
}

/// Ties the types of values that branches with marks compute.
///
/// A state contains some of the branches only. Without a tie, the compiler could find another type for the value in a state
/// that lacks the branch which decides the type.
pub(crate) struct Ties<'a> {
    pub(crate) krate: &'a Path,
    pub(crate) count: usize,
}

impl Ties<'_> {
    fn tie(&mut self, value: &mut Expr) {
        let is_computed = matches!(
            value,
            Expr::Block(_) | Expr::If(_) | Expr::Match(_) | Expr::Loop(_) | Expr::Unsafe(_)
        );
        if !is_computed || !marks::in_expr(value, None) {
            return;
        }
        self.count += 1;
        let (krate, witness) = (self.krate, witness(self.count));
        *value = parse_quote!(#krate::__private::tie(&#witness, #value));
    }
}

fn witness(number: usize) -> Ident {
    format_ident!("__petrel_type_{number}")
}

/// Declares the witnesses of the ties.
pub(crate) fn witnesses(count: usize) -> proc_macro2::TokenStream {
    let names = (1..=count).map(witness);
    quote!(#(let #names = ::core::marker::PhantomData;)*)
}

/// Returns whether a call is a tie, whose second argument is the value.
pub(crate) fn is_tie(call: &syn::ExprCall) -> bool {
    let Some(Expr::Reference(first)) = call.args.first() else { return false };
    matches!(&*first.expr, Expr::Path(path)
        if path.path.get_ident().is_some_and(|name| name.to_string().starts_with("__petrel_type_")))
}

impl VisitMut for Ties<'_> {
    fn visit_local_mut(&mut self, local: &mut Local) {
        visit_mut::visit_local_mut(self, local);
        if let Some(init) = &mut local.init
            && !matches!(local.pat, Pat::Type(_))
        {
            self.tie(&mut init.expr);
        }
    }

    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        visit_mut::visit_expr_mut(self, expression);
        match expression {
            Expr::Match(choice) => self.tie(&mut choice.expr),
            Expr::MethodCall(call) => self.tie(&mut call.receiver),
            Expr::Field(field) => self.tie(&mut field.base),
            Expr::Binary(binary) => self.tie(&mut binary.left),
            Expr::Cast(cast) => self.tie(&mut cast.expr),
            Expr::Unary(unary) => self.tie(&mut unary.expr),
            Expr::Let(condition) => self.tie(&mut condition.expr),
            Expr::Call(call)
                if !is_tie(call) && marks::mark(&Expr::Call(call.clone())).is_none() =>
            {
                if let Some(first) = call.args.first_mut() {
                    self.tie(first);
                }
            }
            _ => {}
        }
    }
    fn visit_expr_closure_mut(&mut self, _: &mut syn::ExprClosure) {}
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}
