//! The code of a state: a copy of the body from a mark to the next marks.
//!
//! A copy keeps the user's nesting, so that the compiler sees ordinary structured code. Behind a mark inside of a loop,
//! the copy has the rest of the loop's body, then the loop, then the text behind the loop. Each copy is at most as long
//! as the body times the depth of its loops; a function with `m` marks therefore grows by a factor of about `m`.
//!
//! A *cut* copy enters its text from the front. A *resumed* copy begins behind the mark with the number that it is given. Both
//! return whether the copy never reaches its end: text behind such code is left out, since the compiler would guess its types.

use std::ops::ControlFlow;

use proc_macro2::Span;
use quote::format_ident;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Error, Expr, ExprBlock, ExprBreak, ExprContinue, ExprIf, ExprMatch, Ident, Label,
    Lifetime, Local, Pat, Result, Stmt, Token, parse_quote,
};

use crate::cut::{
    Copy, breaks_to, cut_block, cut_expr, cut_if, cut_match, cut_stmts, first_operand, is_lazy,
    push_local,
};
use crate::marks;
use crate::names::bound;
use crate::normal::label;

/// The initialiser that stands for a value which the lane kept.
pub(crate) const KEPT: &str = "__petrel_kept";

/// Returns the statement that gives a kept local back to the code.
fn kept(name: &Ident) -> Stmt {
    let value = format_ident!("{KEPT}");
    parse_quote!(let mut #name = #value;)
}

/// Returns the local that a statement gives back.
pub(crate) fn kept_name(statement: &Stmt) -> Option<&Ident> {
    let Stmt::Local(Local { pat: Pat::Ident(pattern), init: Some(init), .. }) = statement else {
        return None;
    };
    matches!(&*init.expr, Expr::Path(path) if path.path.is_ident(KEPT)).then_some(&pattern.ident)
}

fn block_of(expression: Expr) -> Block {
    match expression {
        Expr::Block(ExprBlock { label: None, block, .. }) => block,
        expression => {
            Block { brace_token: Default::default(), stmts: vec![Stmt::Expr(expression, None)] }
        }
    }
}

fn expr_of(block: Block) -> Expr {
    Expr::Block(ExprBlock { attrs: Vec::new(), label: None, block })
}

/// Returns code in which the names have the values that the lane kept.
fn with_kept(names: &[Ident], expression: Expr) -> Block {
    let mut block = block_of(expression);
    block.stmts.splice(0..0, names.iter().map(kept));
    block
}

/// Returns the rest of a block behind a mark.
///
/// # Errors
/// If the mark stands in an operand.
pub(crate) fn resume_block(block: &Block, number: usize) -> Result<Copy<Block>> {
    let place = block.stmts.iter().position(|statement| marks::in_stmt(statement, Some(number)));
    let place = place.expect("the block has the mark");
    let (before, rest) = block.stmts.split_at(place);
    let mut stmts = kept_of(before);
    let ends = match &rest[0] {
        Stmt::Expr(expression, semi) if marks::mark(expression).is_none() => {
            let (copy, ends) = resume_expr(expression, number)?;
            let semi = if ends { Some(Default::default()) } else { *semi };
            stmts.push(Stmt::Expr(copy, semi));
            ends
        }
        Stmt::Local(local) => resume_local(local, number, &mut stmts)?,
        _ => false,
    };
    if ends {
        return Ok((Block { brace_token: block.brace_token, stmts }, true));
    }
    let (copy, ends) = cut_stmts(&rest[1..]);
    stmts.extend(copy);
    Ok((Block { brace_token: block.brace_token, stmts }, ends))
}

/// Gives back the locals that the statements before a mark declare; of locals with equal names, the last.
fn kept_of(before: &[Stmt]) -> Vec<Stmt> {
    let locals = before.iter().filter_map(|statement| match statement {
        Stmt::Local(local) => Some(bound(&local.pat)),
        _ => None,
    });
    locals.flatten().map(|name| kept(&name)).collect()
}

fn resume_local(local: &Local, number: usize, stmts: &mut Vec<Stmt>) -> Result<bool> {
    let init = local.init.as_ref().expect("the mark is in the initialiser");
    if let Some((_, otherwise)) = &init.diverge
        && marks::in_expr(otherwise, Some(number))
    {
        let (copy, _) = resume_expr(otherwise, number)?;
        stmts.push(Stmt::Expr(copy, Some(Default::default())));
        return Ok(true);
    }
    let resumed = resume_expr(&init.expr, number)?;
    Ok(push_local(local, |_| resumed, stmts))
}

fn resume_expr(expression: &Expr, number: usize) -> Result<Copy<Expr>> {
    let is_in = |expression: &Expr| marks::in_expr(expression, Some(number));
    match expression {
        Expr::Block(outer) => {
            let (block, ends) = resume_block(&outer.block, number)?;
            let ends = ends && !breaks_to(outer.label.as_ref(), &block);
            Ok((Expr::Block(ExprBlock { block, ..outer.clone() }), ends))
        }
        Expr::Unsafe(outer) => {
            let mut outer = outer.clone();
            let (block, ends) = resume_block(&outer.block, number)?;
            outer.block = block;
            Ok((Expr::Unsafe(outer), ends))
        }
        Expr::If(choice) if !is_in(&choice.cond) => resume_branch(choice, number),
        Expr::If(choice) => resume_condition(choice, number),
        Expr::Match(choice) => resume_match(choice, number),
        Expr::Loop(repeat) => {
            let (body, ends) = resume_block(&repeat.body, number)?;
            let name = repeat.label.as_ref().map(|label| &label.name);
            Ok(resume_loop(expression, name, body, ends))
        }
        Expr::While(repeat) => {
            let name = repeat.label.as_ref().map(|label| &label.name);
            let (body, ends) = if is_in(&repeat.cond) {
                let (cond, _) = resume_expr(&repeat.cond, number)?;
                let (then, leave) = (
                    cut_block(&repeat.body).0,
                    ExprBreak {
                        attrs: Vec::new(),
                        break_token: Default::default(),
                        label: name.cloned(),
                        expr: None,
                    },
                );
                (parse_quote!({ if #cond #then else { #leave } }), false)
            } else {
                let (body, ends) = resume_block(&repeat.body, number)?;
                (with_kept(&bound_by(&repeat.cond), expr_of(body)), ends)
            };
            Ok(resume_loop(expression, name, body, ends))
        }
        Expr::Binary(binary) if is_lazy(expression) && is_in(&binary.right) => {
            if matches!(&*binary.left, Expr::Let(_)) || matches!(&*binary.right, Expr::Let(_)) {
                return Err(refuse(expression, number));
            }
            // The left side has decided that the right one is the value.
            resume_expr(&binary.right, number)
        }
        outer => resume_operand(outer, number),
    }
}

fn resume_branch(choice: &ExprIf, number: usize) -> Result<Copy<Expr>> {
    if marks::in_block(&choice.then_branch, Some(number)) {
        let (block, ends) = resume_block(&choice.then_branch, number)?;
        return Ok((expr_of(with_kept(&bound_by(&choice.cond), expr_of(block))), ends));
    }
    let (_, otherwise) = choice.else_branch.as_ref().expect("the mark is in a branch");
    resume_expr(otherwise, number)
}

fn resume_condition(choice: &ExprIf, number: usize) -> Result<Copy<Expr>> {
    let (condition, ends) = resume_expr(&choice.cond, number)?;
    if ends {
        return Ok((condition, true));
    }
    let mut choice = choice.clone();
    *choice.cond = parse_quote!(true);
    let ends = matches!(cut_if(&mut choice), ControlFlow::Continue(true));
    *choice.cond = condition;
    Ok((Expr::If(choice), ends))
}

fn resume_match(choice: &ExprMatch, number: usize) -> Result<Copy<Expr>> {
    if marks::in_expr(&choice.expr, Some(number)) {
        let (value, ends) = resume_expr(&choice.expr, number)?;
        if ends {
            return Ok((value, true));
        }
        let mut choice = choice.clone();
        *choice.expr = parse_quote!(());
        let ends = matches!(cut_match(&mut choice), ControlFlow::Continue(true));
        *choice.expr = value;
        return Ok((Expr::Match(choice), ends));
    }
    let arm = choice.arms.iter().find(|arm| marks::in_expr(&arm.body, Some(number)));
    let arm = arm.expect("the mark is in an arm");
    let (body, ends) = resume_expr(&arm.body, number)?;
    Ok((expr_of(with_kept(&bound(&arm.pat), body)), ends))
}

/// Returns the rest of a loop's body, and then the loop from its beginning.
///
/// In the rest, `continue` leaves the inner block and `break` the outer one.
fn resume_loop(repeat: &Expr, name: Option<&Lifetime>, mut body: Block, ends: bool) -> Copy<Expr> {
    let name = name.expect("a loop with marks has a label");
    let number = name.ident.to_string().replace(|letter: char| !letter.is_ascii_digit(), "");
    let next = label(&format!("next_{number}"), Span::call_site());
    let rest = label(&format!("rest_{number}"), Span::call_site());
    Relabel { from: name, next: &next, rest: &rest }.visit_block_mut(&mut body);
    let (next_label, rest_label): (Label, Label) = (parse_quote!(#next:), parse_quote!(#rest:));
    if ends && !breaks_to(Some(&next_label), &body) {
        let ends = !breaks_to(Some(&rest_label), &body);
        return (
            Expr::Block(ExprBlock { attrs: Vec::new(), label: Some(rest_label), block: body }),
            ends,
        );
    }
    let (again, again_ends) = cut_expr(repeat);
    let ends = again_ends && !breaks_to(Some(&rest_label), &body);
    (parse_quote!(#rest: { #next: #body #again }), ends)
}

fn resume_operand(outer: &Expr, number: usize) -> Result<Copy<Expr>> {
    let mut copy = outer.clone();
    let is_break = matches!(outer, Expr::Break(_));
    let operand = first_operand(&mut copy).filter(|operand| marks::in_expr(operand, Some(number)));
    let operand = operand.ok_or_else(|| refuse(outer, number))?;
    let (value, ends) = resume_expr(operand, number)?;
    if ends {
        return Ok((value, true));
    }
    *operand = value;
    Ok((copy, is_break))
}

fn refuse(outer: &Expr, number: usize) -> Error {
    let message = "a mark cannot stand in an operand that is computed after others: bind its value by `let` before";
    Error::new(marks::span(outer, number), message)
}

/// Returns the names that a condition binds for its branch.
fn bound_by(condition: &Expr) -> Vec<Ident> {
    match condition {
        Expr::Let(condition) => bound(&condition.pat),
        Expr::Binary(both) => [bound_by(&both.left), bound_by(&both.right)].concat(),
        _ => Vec::new(),
    }
}

/// Sends the jumps of a loop's body to the blocks that stand for the loop.
struct Relabel<'a> {
    from: &'a Lifetime,
    next: &'a Lifetime,
    rest: &'a Lifetime,
}

impl VisitMut for Relabel<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        visit_mut::visit_expr_mut(self, expression);
        match expression {
            Expr::Break(leave) if leave.label.as_ref() == Some(self.from) => {
                leave.label = Some(self.rest.clone());
            }
            Expr::Continue(ExprContinue { label, continue_token, .. })
                if label.as_ref() == Some(self.from) =>
            {
                *expression = Expr::Break(ExprBreak {
                    attrs: Vec::new(),
                    break_token: Token![break](continue_token.span),
                    label: Some(self.next.clone()),
                    expr: None,
                });
            }
            _ => {}
        }
    }
}
