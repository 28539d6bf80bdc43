import public_jobs

BATCH_SIZE = 32

model = public_jobs.pictures_model()
model.fit(public_jobs.Pictures(BATCH_SIZE), epochs=30)
