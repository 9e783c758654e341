"""Pure maths of training: tensors and numbers in, tensors out; no config, no logging, no devices, no randomness.

One idea a file, in the order in which a batch meets them:

    logprobs          logits or hidden states → log-probabilities of the tokens that were sampled (the one shift by one)
    advantages        rewards → advantages inside a group        gdpo       several rewards → one advantage
    credit            step rewards → advantages of turns         overlong   the soft penalty on long answers
    importance        what corrects for a sampler that is not the trainer
    kl                distance to the reference policy, and which gradient it has
    policy_gradient   ratio, surrogate, loss                     dpo        preference losses
    reduce            per-token weights that turn any loss into a sum (exact under accumulation and over ranks)
    presets           `grpo`, `dapo`, ... as data (this file alone needs no torch)

Masks are 1 where a token was sampled by the policy and is trained. Everything that belongs to a token stands at that
token's own position, so nothing but `logprobs` ever shifts. Log-probabilities are natural logarithms (nats).
"""
