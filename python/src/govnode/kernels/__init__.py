"""The kernels of the adapter contract (sections 7 to 16): a policy and its contexts, and the factory of the hooks.

    from govnode.integrations import LangChainKernel

    agent = create_agent(model, tools, middleware=[LangChainKernel(policy).as_middleware()])

The hooks are those of ``govnode.adapters``. A kernel makes their session from its policy, has interceptors, guardrails
and evaluators of yours judge before the service does, looks at the texts that the contract names, and keeps records.
Each module can be imported without its framework.
"""
