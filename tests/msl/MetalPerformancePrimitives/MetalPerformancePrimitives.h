/* Nothing: shim.h and shim_run.h have it all. */
